"""Dropout on tiles drops what one device drops, from the same seed.

The ranks run one after the other here, each from that seed: threads would share one generator. It needs no message.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from halocline import tiling
from halocline.tiling import NoCommunication, drawn_part
from halocline.tiling.strides import memory_order, noted
from harness.ranks import assert_close, image, in_turns, on_processes

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "in place": lambda x: F.dropout(x.clone(), 0.4, inplace=True),
    "torch": lambda x: torch.dropout(x, 0.4, True),
    "all": lambda x: F.dropout(x, 1.0),
    "none": lambda x: F.dropout(x, 0.0),
    "in evaluation": lambda x: F.dropout(x, 0.4, training=False),
    "channels": lambda x: F.dropout2d(x, 0.4),
    "channels in place": lambda x: F.dropout2d(x.clone(), 0.4, inplace=True),
    "feature": lambda x: torch.feature_dropout(x, 0.4, True),
    "alpha": lambda x: F.alpha_dropout(x, 0.4, True),
    "alpha in place": lambda x: F.alpha_dropout(x.clone(), 0.4, True, True),
    "alpha all": lambda x: F.alpha_dropout(x, 1.0, True),
    "alpha none": lambda x: F.alpha_dropout(x, 0.0, True),
    "alpha in evaluation": lambda x: F.alpha_dropout(x, 0.4),
    "alpha channels": lambda x: F.feature_alpha_dropout(x, 0.4, True),
    "twice": lambda x: F.dropout(F.dropout2d(F.relu(F.dropout(x, 0.2)), 0.3), 0.4),
    "permuted": lambda x: F.dropout(x.permute(0, 2, 3, 1), 0.4).permute(0, 3, 1, 2),
}


MODULES: dict[str, Callable[[float], nn.Module]] = {
    "dropout": nn.Dropout,
    "dropout in place": lambda p: nn.Dropout(p, inplace=True),
    "channels": nn.Dropout2d,
    "alpha": nn.AlphaDropout,
    "alpha in place": lambda p: nn.AlphaDropout(p, inplace=True),
    "alpha channels": nn.FeatureAlphaDropout,
}


def same_as_one_device(function: Callable[[Tensor], Tensor], x: Tensor, cuts: list[list[int]], margin: int = 0) -> None:
    x = x.detach().requires_grad_()
    torch.manual_seed(5)
    expected = function(x)
    following = torch.rand(1)
    (expected * image(expected.shape, 2)).sum().backward()
    size = 1
    for c in cuts:
        size *= len(c) - 1
    for rank in range(size):
        whole = tiling.tile(x.detach(), cuts=cuts, group=NoCommunication(rank, size))
        spec = whole.spec.grown(margin)
        box = (..., *[slice(*i) for i in spec.held])
        part = x.detach()[box]
        local = part if 0 in x.stride() else part.clone(memory_format=torch.preserve_format)  # a copy repeats nothing
        local.requires_grad_()
        torch.manual_seed(5)
        out = function(tiling.TileTensor.wrap(local, spec))
        assert torch.equal(torch.rand(1), following), f"rank {rank} is out of step"
        assert_close(out.local, expected[box], 1e-12, f"rank {rank}")
        (out.local * image(expected.shape, 2)[box]).sum().backward()
        assert x.grad is not None
        assert_close(local.grad, x.grad[box], 1e-12, f"gradient of rank {rank}")


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_image(name: str, margin: int, memory_format: torch.memory_format) -> None:
    x = image((2, 5, 7, 9)).contiguous(memory_format=memory_format)
    same_as_one_device(FUNCTIONS[name], x, [[0, 2, 7], [0, 1, 9]], margin)


def strided() -> dict[str, Tensor]:
    """Images that lie in memory as strangers' do, some of them with tiles of one pixel."""
    x, small = image((2, 5, 7, 9)), image((1, 4, 2, 3))
    last = torch.channels_last
    return {
        "permuted": image((7, 2, 9, 5)).permute(1, 3, 0, 2),
        "repeated": image((2, 1, 7, 9)).expand(2, 5, 7, 9),
        "repeated samples": image((1, 5, 7, 9)).contiguous(memory_format=last).expand(2, 5, 7, 9),
        "part of channels": image((2, 8, 7, 9)).contiguous(memory_format=last)[:, 2:7],
        "every second pixel": image((2, 5, 14, 9)).contiguous(memory_format=last)[:, :, ::2],
        "one channel": image((2, 1, 7, 9)).contiguous(memory_format=last),
        "small": small,
        "small, channels last": small.contiguous(memory_format=last),
        "turned": x.transpose(2, 3).contiguous().transpose(2, 3),
    }


@pytest.mark.parametrize("name", strided())
@pytest.mark.parametrize("function", ["dropout", "channels", "alpha", "permuted"])
def test_any_order_in_memory(name: str, function: str) -> None:
    x = strided()[name]
    height, width = x.shape[2:]
    for cuts in ([[0, 1, height], [0, 1, width]], [[0, height - 1, height], [0, width // 2, width]]):
        same_as_one_device(FUNCTIONS[function], x, cuts)


@pytest.mark.parametrize("module", [nn.Dropout(0.3), nn.Dropout1d(0.3), nn.AlphaDropout(0.3)])
def test_line(module: nn.Module) -> None:
    same_as_one_device(module, image((3, 4, 11)), [[0, 2, 11]])
    same_as_one_device(module, image((4, 11)), [[0, 2, 11]])


def test_volume() -> None:
    same_as_one_device(nn.Dropout3d(0.3), image((3, 4, 4, 5, 6)), [[0, 2, 4], [0, 5], [0, 5, 6]])
    same_as_one_device(nn.Dropout3d(0.3), image((4, 4, 5, 6)), [[0, 2, 4], [0, 5], [0, 5, 6]])


def test_no_whole_mask_is_kept() -> None:
    x = tiling.tile(torch.ones(1, 1, 64, 64), (1, 4), NoCommunication(0, 4)).requires_grad_()
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.untyped_storage().nbytes()) or t, lambda t: t
    ):
        F.dropout(x)
    assert saved and max(saved) <= 64 * 16 * 4


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, list[list[int]]]:
    """An image that lies in memory in any order, and its cuts, some of which leave tiles of one pixel or none."""
    shape = [draw(st.integers(1, n)) for n in (3, 4, 9, 9)]
    order = draw(st.permutations(range(4)))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    x = image([shape[d] for d in order], dtype=dtype).permute(*(order.index(d) for d in range(4)))
    inner = [sorted(draw(st.lists(st.integers(0, n), max_size=2))) for n in shape[2:]]
    return x, [[0, *line, n] for line, n in zip(inner, shape[2:])]


@settings(deadline=None, max_examples=150)
@given(
    cases(),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.1, 0.5, 0.875, 1.0]),
    st.sampled_from(sorted(MODULES)),
    st.booleans(),
    st.integers(1, 300),
)
def test_any_cuts_in_blocks(
    case: tuple[Tensor, list[list[int]]], margin: int, p: float, name: str, training: bool, block: int
) -> None:
    (x, cuts), module = case, MODULES[name](p).train(training)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        out = module(x.clone(memory_format=torch.preserve_format) if "in place" in name else x)
        return out, torch.rand(1)

    def on_rank(exchanger: Any) -> None:
        spec = tiling.TileSpec(tuple(map(tuple, cuts)), exchanger).grown(margin)
        box = (..., *[slice(*i) for i in spec.held])
        local = noted(x.detach()[box].clone(memory_format=torch.preserve_format), memory_order(x)).requires_grad_()
        out, following = step(tiling.TileTensor.wrap(local, spec))
        assert torch.equal(out.local, expected[box])
        assert torch.equal(following, expected_following)
        (out.local * weights[box]).sum().backward()
        assert x.grad is not None and torch.equal(local.grad, x.grad[box])

    x.requires_grad_()
    weights = image(x.shape, 2, x.dtype)
    torch.manual_seed(5)
    expected, expected_following = step(x)
    (expected * weights).sum().backward()
    usual, drawn_part.BLOCK = drawn_part.BLOCK, block
    try:
        in_turns((len(cuts[0]) - 1) * (len(cuts[1]) - 1), 5, on_rank)
    finally:
        drawn_part.BLOCK = usual


class Largest(TorchDispatchMode):
    """How many bytes the largest tensor takes that is made within."""

    found = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        made = [t.untyped_storage().nbytes() for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.found = max(self.found, *made, 0)
        return out


@pytest.mark.parametrize("name", ["dropout", "in place", "alpha"])
@pytest.mark.parametrize("again", [False, True])
def test_no_rank_makes_the_mask_of_the_whole_image(name: str, again: bool) -> None:
    tile = 4 * 256 * 128 * 4
    for rows in (256, 2048):
        spec = tiling.TileSpec(((0, 256, rows) if rows > 256 else (0, rows), (0, 128, 256)), NoCommunication(0, 4))
        x = tiling.TileTensor.wrap(torch.ones(1, 4, 256, 128, requires_grad=True), spec)
        with Largest() as largest:
            out = checkpoint(FUNCTIONS[name], x, use_reentrant=False) if again else FUNCTIONS[name](x)
            out.local.sum().backward()
        assert 0 < largest.found <= tile, f"{largest.found} bytes at once, of a tile of {tile}"


def network_on_a_process() -> None:
    """Dropout between layers that exchange, on processes with generators of their own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Dropout2d(0.3), nn.Dropout(0.3), nn.Conv2d(4, 2, 3)).double()
    x = image((2, 3, 9, 9))
    torch.manual_seed(7)
    expected = net(x)
    expected.pow(2).sum().backward()
    wanted = [p.grad for p in net.parameters()]
    net.zero_grad()
    torch.manual_seed(7)
    out = net(tiling.tile(x, (1, 2))).full()
    assert_close(out, expected, 1e-12, "output")
    tiling.backward(out.pow(2).sum(), net)
    for p, grad in zip(net.parameters(), wanted):
        assert_close(p.grad, grad, 1e-12, "gradient")


def test_a_network_on_processes() -> None:
    on_processes(2, network_on_a_process)


def test_a_wrong_probability_is_refused() -> None:
    x = tiling.tile(torch.zeros(1, 2, 4, 4), (1, 2), NoCommunication(0, 2))
    with pytest.raises(ValueError, match=r"between 0 and 1, but got 1\.5"):
        F.dropout(x, 1.5)
