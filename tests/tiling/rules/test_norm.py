"""Every normalisation on tiles equals one device's: output, gradients and running statistics."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import UntiledOperation
from halocline.tiling.rules.norm import values_per_rank
from harness.ranks import assert_close, assert_exact, image, on_processes, on_threads

SHAPES = {1: (2, 6, 11), 2: (2, 6, 7, 9), 3: (2, 6, 4, 5, 3)}
CUTS = {1: [[0, 2, 11]], 2: [[0, 2, 7], [0, 1, 9]], 3: [[0, 1, 4], [0, 5], [0, 2, 3]]}


class Twice(nn.Module):
    """Two steps of a norm on different batches with random parameters, so that running statistics have a history."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        torch.manual_seed(1)
        for p in norm.parameters():
            nn.init.normal_(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.norm(3 * x * x + 1)


BATCH = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([BATCH, INSTANCE]),
    st.sampled_from([0.1, 0.7, None]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 1]),
)
def test_batch_and_instance_norm(
    dims: int,
    family: dict[int, type[nn.Module]],
    momentum: float | None,
    affine: bool,
    tracked: bool,
    training: bool,
    margin: int,
) -> None:
    if family is INSTANCE and momentum is None:
        momentum = 0.3  # which instance norm needs
    norm = family[dims](6, momentum=momentum, affine=affine, track_running_stats=tracked)
    assert_exact(Twice(norm).train(training), SHAPES[dims], cuts=CUTS[dims], margin=margin, tiled=True)


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("training", [True, False])
def test_sync_batch_norm_is_batch_norm(training: bool, margin: int) -> None:
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)))
    assert isinstance(net[1], nn.SyncBatchNorm)
    plain = nn.Sequential(net[0], nn.BatchNorm2d(4))
    plain.load_state_dict(net.state_dict())
    assert_exact(net.train(training), (2, 3, 7, 9), grid=(2, 2), margin=margin)
    for norm in (net, plain):
        norm.double().train(training)
    x = image((2, 3, 7, 9))
    assert_close(net(x), plain(x), 1e-12, "without tiles")


def norm_on_a_process() -> None:
    """With a process group SyncBatchNorm would refuse the CPU, and on GPUs talk to that group."""
    norm, reference = nn.SyncBatchNorm(3).double(), nn.BatchNorm2d(3).double()
    x, y = (image((2, 3, 8, 8)).requires_grad_() for _ in range(2))
    out = norm(tiling.tile(x, (1, 2))).full()
    expected = reference(y)
    assert_close(out, expected, 1e-12, "output")
    tiling.backward(out.pow(3).sum(), norm)
    expected.pow(3).sum().backward()
    assert_close(x.grad, y.grad, 1e-12, "gradient")
    assert_close(norm.weight.grad, reference.weight.grad, 1e-12, "gradient of the weight")
    assert_close(norm.running_var, reference.running_var, 1e-12, "running variance")


def test_sync_batch_norm_on_processes() -> None:
    on_processes(2, norm_on_a_process)


def conv_then(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.MaxPool2d(4, 4), norm)


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm2d(6), nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, track_running_stats=True), nn.LayerNorm([2, 2])],
)
def test_ranks_without_pixels(norm: nn.Module) -> None:
    assert_exact(conv_then(norm), (2, 6, 8, 9), grid=(1, 6))


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups: int, dims: int, margin: int) -> None:
    assert_exact(Twice(nn.GroupNorm(groups, 6)), SHAPES[dims], cuts=CUTS[dims], margin=margin, tiled=True)


class ChannelsLast(nn.Module):
    """A norm over the last dim between two permutations, as in ConvNeXt."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize(
    "norm",
    [
        ChannelsLast(nn.LayerNorm(6)),
        ChannelsLast(nn.RMSNorm(6)),
        ChannelsLast(nn.LayerNorm((7, 9, 6))),
        ChannelsLast(nn.LayerNorm((9, 6))),
        ChannelsLast(nn.RMSNorm((7, 9, 6), eps=1e-3)),
        nn.LayerNorm((6, 7, 9)),
        nn.LayerNorm((7, 9), bias=False),
        nn.LayerNorm((7, 9), elementwise_affine=False),
        nn.LayerNorm(9),
        nn.RMSNorm((7, 9)),
        nn.RMSNorm(9),
    ],
)
@pytest.mark.parametrize("cuts", [CUTS[2], [[0, 3, 7], [0, 9]]])
def test_layer_norm(norm: nn.Module, margin: int, cuts: list[list[int]]) -> None:
    assert_exact(Twice(norm), SHAPES[2], cuts=cuts, margin=margin, tiled=True)


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.local_response_norm(x, 3),
        nn.LocalResponseNorm(2, alpha=0.1),
        lambda x: F.normalize(x),
        lambda x: F.normalize(x, p=1, dim=1),
        lambda x: F.normalize(x, dim=(2, 3)),
        lambda x: F.normalize(x, dim=-1),
    ],
)
def test_responses_and_unit_vectors(function: Callable[[Tensor], Tensor], margin: int) -> None:
    assert_exact(function, SHAPES[2], cuts=CUTS[2], margin=margin, tiled=True)


def test_statistics_do_not_cancel() -> None:
    """float32 pixels around 1000: E[x^2] - E[x]^2 would lose every digit of the variance."""
    x = image((2, 3, 8, 8)) + 1e3
    reference = nn.BatchNorm2d(3).double()
    expected = reference(x.float().double()).float()

    def run(exchanger: tiling.Exchanger) -> None:
        norm = nn.BatchNorm2d(3)
        out = norm(tiling.tile(x.float(), (2, 2), exchanger)).full()
        assert_close(out, expected, 1e-3, "output")
        assert_close(norm.running_var, reference.running_var.float(), 1e-5, "running variance")

    on_threads(4, run)


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d(6), nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)])
def test_low_precision(norm: nn.Module, parameters: torch.dtype, margin: int) -> None:
    """bf16 pixels, parameters in bf16 or, as under autocast, in float32: as near to float64 as bf16 allows."""
    exact = copy.deepcopy(norm).double()
    x = image((2, 6, 8, 8), dtype=torch.bfloat16).requires_grad_()
    y = x.detach().double().requires_grad_()
    expected = exact(y)
    (expected * image(expected.shape, 3)).sum().backward()

    def run(exchanger: tiling.Exchanger) -> None:
        mine = copy.deepcopy(norm).to(parameters)
        leaf = x.detach().clone().requires_grad_()
        t = tiling.tile(leaf, (2, 2), exchanger)
        t = t.fetched(t.spec.grown(margin).have)
        out = mine(t).full()
        assert out.dtype is torch.bfloat16
        assert_close(out.double(), expected, 2e-2, "output")
        tiling.backward((out.double() * image(out.shape, 3)).sum(), mine, exchanger)
        assert leaf.grad is not None and y.grad is not None
        assert_close(leaf.grad.double(), y.grad, 3e-2, "gradient")
        for p, q in zip(mine.parameters(), exact.parameters()):
            assert p.grad is not None and p.grad.dtype is parameters
            assert_close(p.grad.double(), q.grad, 2e-2, "gradient of a parameter")

    on_threads(4, run)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(6), nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)])
def test_memory_format_is_torchs_and_one_collective_each_way(norm: nn.Module) -> None:
    x = image((2, 6, 8, 8), dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    kept = norm(x).is_contiguous(memory_format=torch.channels_last)  # all but instance norm do

    def run(exchanger: tiling.Exchanger) -> None:
        mine = copy.deepcopy(norm)
        t = tiling.tile(x, (2, 2), exchanger).requires_grad_()
        exchanger.counter.reset()
        out = mine(t)
        assert out.local.is_contiguous(memory_format=torch.channels_last) == kept
        assert exchanger.counter.reductions == 1 and exchanger.counter.exchanges == 0
        out.local.square().sum().backward()
        # Batch norm's parameters get the sums that its statistics need; those of the others are summed apart.
        assert exchanger.counter.reductions == (2 if isinstance(norm, nn.BatchNorm2d) else 3)
        assert exchanger.counter.exchanges == 0

    on_threads(4, run)


def test_refusals() -> None:
    x = tiling.tile(torch.zeros(2, 4, 4), (1, 2), tiling.NoCommunication(0, 2))
    for call in (lambda: F.batch_norm(x, None, None, training=True), lambda: F.group_norm(x, 2)):
        with pytest.raises(UntiledOperation, match="must not be cut"):
            call()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        one = tiling.tile(torch.zeros(1, 3, 2, 2), (1, 2), tiling.NoCommunication(0, 2))
        F.batch_norm(F.max_pool2d(one, 2), None, None, training=True)
    with pytest.raises(ValueError, match="use a divisor of 3"):
        F.group_norm(one, 2)


def test_lanes_on_a_gpu_counted_samples_instead_of_values() -> None:
    """What the GPU's kernels are told, for a batch cut over ranks, an image cut in rows only, and in both dims."""
    spec = tiling.TileSpec(((0, 1, 4),), tiling.NoCommunication(0, 2), (-4,))
    assert values_per_rank(spec, 4 * 8 * 9) == [1 * 8 * 9, 3 * 8 * 9]
    spec = tiling.TileSpec(((0, 3, 8),), tiling.NoCommunication(0, 2), (-2,))
    assert values_per_rank(spec, 4 * 8 * 9) == [4 * 3 * 9, 4 * 5 * 9]
    spec = tiling.TileSpec(((0, 3, 8), (0, 4, 9)), tiling.NoCommunication(0, 4))
    assert values_per_rank(spec, 4 * 8 * 9) == [4 * 12, 4 * 15, 4 * 20, 4 * 25]


@pytest.mark.parametrize("cuts", [[[0, 1, 1], [0, 5]], [[0, 0, 1], [0, 2, 5]]])
def test_lanes_without_samples(cuts: list[list[int]]) -> None:
    plain = [image((4,), 1).requires_grad_(), image((4,), 2).requires_grad_()]

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
        return [F.instance_norm(x, weight=weight, bias=bias), F.group_norm(x, 2, weight, bias)]

    assert_exact(run, (1, 4, 5), cuts=cuts, dims=(-3, -1), plain=plain)


def test_parameters_of_a_norm_that_are_tiles_are_refused() -> None:
    with pytest.raises(UntiledOperation, match="must be plain"):
        assert_exact(lambda x, w: F.group_norm(x, 2, w), [(2, 4, 6), (4,)], grid=(2,))
    with pytest.raises(UntiledOperation, match="must be plain"):
        assert_exact(lambda x, w: F.instance_norm(x, weight=w), [(2, 4, 6), (4,)], grid=(2,))
    with pytest.raises(UntiledOperation, match="must be plain"):
        assert_exact(lambda x, w: F.batch_norm(x, None, None, w, None, True), [(2, 4, 6), (4,)], grid=(2,))


def test_a_batch_without_samples_leaves_statistics_as_they_are() -> None:
    assert_exact(nn.BatchNorm2d(4), (0, 4, 5, 6), grid=(2, 2))
