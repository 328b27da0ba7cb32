"""Fused halos: exact on unmodified networks, with one exchange per group in the forward and one in the backward."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halocline import tiling
from harness.ranks import assert_close, assert_exact, image, on_threads


class Basic(nn.Module):
    def __init__(self, given: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(given, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.skip = None
        if stride != 1 or given != out:
            self.skip = nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)
        out = self.norm2(self.conv2(out))
        out += x if self.skip is None else self.skip(x)
        return F.relu(out, inplace=True)


class Bottleneck(nn.Module):
    def __init__(self, given: int, inner: int, stride: int = 1) -> None:
        super().__init__()
        out = 2 * inner
        self.body = nn.Sequential(
            *(nn.Conv2d(given, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.skip = nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def blocks() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Basic(3, 4), Basic(4, 4), Basic(4, 6, 2), Bottleneck(6, 4), Bottleneck(8, 4, 2), Basic(8, 8)]


class Fused(nn.Module):
    """A network run inside `tiling.fused`, on tiles and on one device alike."""

    def __init__(self, layers: Sequence[nn.Module], group: int | None) -> None:
        super().__init__()
        self.net, self.group = nn.Sequential(*layers), group

    def forward(self, x: Tensor) -> Tensor:
        with tiling.fused(self.group):
            return self.net(x)


CUTS = {
    "1x2": [[0, 29], [0, 13, 26]],
    "2x2": [[0, 14, 29], [0, 13, 26]],
    "1x3 uneven": [[0, 29], [0, 5, 16, 26]],
    "3x1, a tile narrower than the halo": [[0, 13, 16, 29], [0, 26]],
}


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("group", [1, 2, 3, None])
def test_a_residual_network_is_exact(group: int | None, cuts: list[list[int]]) -> None:
    assert_exact(Fused(blocks(), group), (2, 3, 29, 26), cuts=cuts)


def exchanges(net: nn.Module, cuts: list[list[int]]) -> tuple[int, int, int]:
    """Exchanges in the forward and the backward of a second step, and the bytes of both."""
    copies = [copy.deepcopy(net).double() for _ in range((len(cuts[0]) - 1) * (len(cuts[1]) - 1))]
    size = cuts[0][-1], cuts[1][-1]

    def run(exchanger: tiling.Exchanger) -> tuple[int, int, int]:
        mine, traffic = copies[exchanger.rank], tiling.traffic(exchanger)
        x = tiling.tile(image((1, 3, *size)), group=exchanger, cuts=cuts).requires_grad_()
        traffic.reset()
        out = mine(x)
        forward = traffic.exchanges
        out.owned.sum().backward()
        return forward, traffic.exchanges - forward, traffic.bytes

    results = on_threads(len(copies), run)
    assert len({r[:2] for r in results}) == 1, "the ranks disagree"
    return results[0]


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_one_exchange_per_group(cuts: list[list[int]]) -> None:
    plain = exchanges(nn.Sequential(*blocks()), cuts)
    # Each 3x3 convolution and, where tiles have an odd edge, nothing else.
    assert plain[:2] == (10, 10)
    for group, expected in ((1, 6), (2, 3), (3, 2), (None, 1)):
        assert exchanges(Fused(blocks(), group), cuts)[:2] == (expected, expected), group


def test_a_wide_halo_sends_no_more_than_the_group_needs() -> None:
    """Two 3x3 convolutions need two rows of the neighbour, each way, and four in the backward's return."""
    convs = [nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)]
    forward, backward, sent = exchanges(Fused(convs, 2), [[0, 8, 16], [0, 10]])
    assert (forward, backward, sent) == (1, 1, 2 * (2 * 10 * 3 * 8))


def test_the_recording_leaves_no_trace() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3))

    def run(exchanger: tiling.Exchanger) -> None:
        mine = copy.deepcopy(net).double()
        norm = mine[1]
        assert isinstance(norm, nn.BatchNorm2d)
        held = norm.running_mean, norm.num_batches_tracked
        versions = [t._version for t in held if t is not None]
        x = tiling.tile(image((1, 3, 12, 12)), (2, 1), exchanger)
        before = x.local.clone()
        tiling.fusion._prefetch(list(mine), (x,))  # type: ignore[attr-defined]
        assert (norm.running_mean, norm.num_batches_tracked) == held
        assert [t._version for t in held if t is not None] == versions
        assert norm.num_batches_tracked == 0
        assert torch.equal(x.local, before)
        assert all(p.grad is None for p in mine.parameters())

    state = torch.get_rng_state()
    on_threads(2, run)
    assert torch.equal(torch.get_rng_state(), state)


def test_fuse_marks_one_block_for_good() -> None:
    layers = blocks()
    net = nn.Sequential(*[tiling.fuse(b) if i % 2 else b for i, b in enumerate(layers)])
    assert_exact(net, (1, 3, 29, 26), grid=(2, 2))
    # Basic, fused Basic, Basic, fused Bottleneck, Bottleneck, fused Basic
    assert exchanges(net, CUTS["2x2"])[:2] == (2 + 1 + 2 + 1 + 1 + 1,) * 2


class Pair(nn.Module):
    """A cell of two states, as AmoebaNet's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 5, padding=2), nn.Conv2d(3, 3, 3, padding=1)
        self.pool = nn.MaxPool2d(3, 1, 1)

    def forward(self, states: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = states
        return y, F.relu(self.a(x) + self.pool(self.b(y)))


def test_a_group_whose_layers_pass_pairs() -> None:
    cells = nn.ModuleList([Pair(), Pair(), Pair()])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = cells

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out: tuple[Tensor, Tensor] = tiling.run_fused(list(self.cells), (x, x * 2))
            return out

    assert_exact(Net(), (1, 3, 17, 19), grid=(2, 2))

    class First(Net):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)[1]

    assert exchanges(First(), [[0, 8, 17], [0, 9, 19]])[:2] == (2, 2), "one per state"


class Gate(nn.Module):
    """Squeeze and excite: a spatial mean inside the group, whose result is a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv(F.adaptive_avg_pool2d(x, 1)))


def test_a_global_pool_inside_a_group() -> None:
    layers = [nn.Conv2d(3, 4, 3, padding=1), Gate(), nn.Conv2d(4, 4, 3, padding=1), nn.AvgPool2d(3, 2, 1)]
    assert_exact(Fused(layers, None), (2, 3, 15, 14), grid=(2, 2))
    assert exchanges(Fused(layers, None), [[0, 8, 15], [0, 14]])[:2] == (1, 1)


class Gather(nn.Module):
    """Uses the whole image in the middle of a group; what follows is tiled anew."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.full().mean() if isinstance(x, tiling.TileTensor) else x + x.mean()


def test_a_group_that_gathers_is_exact() -> None:
    layers = [nn.Conv2d(3, 4, 3, padding=1), Gather(), nn.Conv2d(4, 4, 3, padding=1)]
    assert_exact(Fused(layers, None), (2, 3, 15, 14), grid=(2, 2))


class Refused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.qr(x)[0]


def test_a_group_that_cannot_be_recorded_says_why_when_it_runs() -> None:
    layers = [nn.Conv2d(3, 4, 3, padding=1), Refused()]

    def refused(exchanger: tiling.Exchanger) -> None:
        with tiling.fused(), pytest.raises(tiling.UntiledOperation, match=r"torch\.linalg\.qr.* in module 1"):
            nn.Sequential(*layers).double()(tiling.tile(image((1, 3, 16, 14)), (1, 2), exchanger))

    on_threads(2, refused)


class Fickle(nn.Module):
    """Takes a longer way every second time: the record of the first call is too narrow for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.b(self.a(x)) if self.calls % 3 == 2 else self.a(x)


def test_a_record_that_is_too_narrow_stays_exact() -> None:
    net = Fickle().double()
    net.calls = 1
    expected = copy.deepcopy(net)(image((1, 3, 16, 12)))

    def run(exchanger: tiling.Exchanger) -> None:
        mine = copy.deepcopy(net)
        mine.calls = 0
        for _ in range(2):  # the record is the first call's
            y = tiling.run_fused([mine], tiling.tile(image((1, 3, 16, 12)), (2, 1), exchanger))
        assert mine.calls == 2
        assert_close(y.full(), expected, 1e-12, "output")

    on_threads(2, run)


class Counter:
    def __init__(self) -> None:
        self.calls, self.sizes = 0, [0]


class Remembers(nn.Module):
    """Keeps things from one forward to the next in every way but as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.calls, self.counter, self.history, self.by_name = 0, Counter(), [0], {"calls": 0}
        self.mean, self.average = torch.zeros(3).double(), torch.zeros(3).double()
        self.hidden = [nn.BatchNorm2d(3).double()]
        self.generator = torch.Generator().manual_seed(1)
        self.late: Tensor | None = None
        seen = [0]
        self.conv.register_forward_hook(lambda *_: seen.append(len(seen)))
        self.seen = lambda: len(seen)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.counter.calls += 1
        self.counter.sizes[0] += 1
        self.history.append(self.calls)
        self.by_name["calls"] += 1
        self.late = torch.zeros(()) if self.late is None else self.late + 1
        y = self.hidden[0](self.conv(x)) * torch.rand((), generator=self.generator, dtype=torch.float64)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean((0, 2, 3)))
            self.average = 0.9 * self.average + y.mean((0, 2, 3))
        return y

    def kept(self) -> list[object]:
        numbers = self.calls, self.counter.calls, self.counter.sizes, self.history, self.by_name, self.seen()
        return [*numbers, float(self.late or 0), int(self.hidden[0].num_batches_tracked)]  # type: ignore[arg-type]


def test_attributes_that_a_forward_changes_change_once() -> None:
    """The recording counted a second time."""
    known = Remembers().double()
    expected = known(image((1, 3, 16, 12)))
    state = {name: value.clone() for name, value in known.state_dict().items()}

    def run(exchanger: tiling.Exchanger) -> None:
        mine = Remembers().double()
        mine.load_state_dict(state)
        held = mine.mean
        y = tiling.run_fused([mine], tiling.tile(image((1, 3, 16, 12)), (2, 1), exchanger))
        assert_close(y.full(), expected, 1e-12, "output")
        assert mine.kept() == known.kept()
        assert mine.mean is held
        assert_close(mine.mean, known.mean, 1e-12, "a mean that is changed in place")
        assert_close(mine.average, known.average, 1e-12, "a mean that is set anew")

    on_threads(2, run)


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return out


def test_fused_blocks_under_activation_checkpointing() -> None:
    net = nn.Sequential(*[Checkpointed(tiling.fuse(b)) for b in blocks()])
    assert_exact(net, (1, 3, 29, 26), grid=(2, 2))


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match=r"fused\(0\)"), tiling.fused(0):
        pass
    with pytest.raises(ValueError, match="no modules"):
        tiling.run_fused([], torch.zeros(1))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_chains(data: st.DataObject) -> None:
    """Chains of windows with strides, dilations and skips, on uneven tiles, in groups of any length."""
    layers: list[nn.Module] = []
    size = 24
    for _ in range(data.draw(st.integers(2, 5))):
        kernel = data.draw(st.integers(1, 4))
        stride = data.draw(st.integers(1, 2)) if size > 6 else 1
        dilation = data.draw(st.integers(1, 2))
        padding = data.draw(st.integers(0, 2))
        if size + 2 * padding - dilation * (kernel - 1) < 3:
            break
        layers.append(nn.Conv2d(2, 2, kernel, stride, padding, dilation))
        layers += data.draw(st.sampled_from([[], [nn.BatchNorm2d(2)], [nn.ReLU()], [nn.MaxPool2d(3, 1, 1)]]))
        size = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    cut = data.draw(st.integers(1, 23))
    cuts = data.draw(st.sampled_from([[[0, cut, 24], [0, 24]], [[0, 24], [0, 3, 24]], [[0, cut, 24], [0, 15, 24]]]))
    group = data.draw(st.sampled_from([1, 2, 3, None]))
    # Normalising a handful of pixels several times over magnifies rounding.
    assert_exact(Fused(layers, group), (2, 2, 24, 24), cuts=cuts, tolerance=1e-9)
