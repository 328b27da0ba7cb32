"""Computing while the halo travels: exact under every policy, and `auto` keeps what was faster."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import overlapping, window
from halocline.tiling.boxes import Window, clip, contains
from halocline.tiling.geometry import geometry, needed
from halocline.tiling.overlapping import OverlapTrial, Policy, split
from harness.ranks import assert_close, assert_exact, image, on_threads


@pytest.fixture(autouse=True)
def _no_tile_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "SMALL", 0)


class Under(nn.Module):
    def __init__(self, module: nn.Module, policy: Policy) -> None:
        super().__init__()
        self.module, self.policy = module, policy

    def forward(self, x: Tensor) -> Tensor:
        with tiling.overlap(self.policy):
            out: Tensor = self.module(x)
        return out


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_windows_are_exact_when_overlapped(data: st.DataObject) -> None:
    dims = data.draw(st.sampled_from([1, 2, 2, 3]))
    cuts = []
    for _ in range(dims):
        n = data.draw(st.integers(6, 16 if dims < 3 else 8))
        cuts.append([0, *sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=2 if dims < 3 else 1))), n])
    kernel = tuple(data.draw(st.integers(1, 4)) for _ in cuts)
    stride = tuple(data.draw(st.integers(1, 2)) for _ in cuts)
    padding = tuple(data.draw(st.integers(0, k // 2)) for k in kernel)
    kinds = ((nn.Conv1d, nn.MaxPool1d), (nn.Conv2d, nn.MaxPool2d), (nn.Conv3d, nn.MaxPool3d))[dims - 1]
    module: nn.Module
    if data.draw(st.booleans()):
        module = kinds[0](2, 2, kernel, stride, padding)  # type: ignore[arg-type]
    else:
        module = kinds[1](kernel, stride, padding)  # type: ignore[arg-type]
    margin = data.draw(st.sampled_from([0, 0, 1, 2]))
    policy: Policy = data.draw(st.sampled_from(["never", "always", "always"]))
    assert_exact(Under(module, policy), (2, 2, *[c[-1] for c in cuts]), cuts=cuts, margin=margin)


@pytest.mark.parametrize("policy", ["auto", "never", "always"])
@pytest.mark.parametrize("grid", [(1, 2), (2, 2), (3, 1)])
def test_a_network_under_each_policy(policy: Policy, grid: tuple[int, int]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 4, 5, 2, 2), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AvgPool2d(3, 2, 1)),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=2, dilation=2, bias=False)),
    )
    assert_exact(Under(net, policy), (2, 3, 33, 30), grid=grid)


def spec_of(cuts: tuple[tuple[int, ...], ...], rank: int = 0) -> tiling.TileSpec:
    size = 1
    for c in cuts:
        size *= len(c) - 1
    return tiling.TileSpec(cuts, tiling.NoCommunication(rank, size))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_seams_are_the_outputs_that_read_what_others_own(data: st.DataObject) -> None:
    reaches = tuple(
        Window(k, data.draw(st.integers(1, 2)), k // 2, data.draw(st.integers(0, k // 2)))
        for k in (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)))
    )
    spec = spec_of(((0, 8, 20), (0, 6, 12, 19)), data.draw(st.integers(0, 5)))
    where = geometry(spec, reaches)
    parts = split(where, reaches)
    if parts is None:
        return
    seams = [seam.out_box for seam in parts.seams]
    for i in range(*where.out_box[0]):
        for j in range(*where.out_box[1]):
            pixel = (i, i + 1), (j, j + 1)
            reads = clip(needed(reaches, pixel), spec.size)
            assert sum(contains(seam, pixel) for seam in seams) == (not contains(spec.box, reads))


def test_common_layers_split() -> None:
    spec = spec_of(((0, 16, 32), (0, 32)))
    for kernel, stride, pad in ((3, 1, 1), (3, 2, 1), (7, 2, 3), (5, 1, 2)):
        reaches = (Window(kernel, stride, pad, pad),) * 2
        assert split(geometry(spec, reaches), reaches) is not None


def test_the_tile_is_computed_before_the_halo_arrives() -> None:
    """Rank 1 sends nothing until rank 0 has computed something."""
    computed = threading.Event()
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False).double()
    expected = conv(image((1, 1, 16, 6)))

    class Slow(tiling.ThreadExchanger):
        def _start(self, sends, receives):  # type: ignore[no-untyped-def]
            wait = super()._start(sends, receives)

            def later() -> None:
                computed.set()
                wait()

            return later

    def run(exchanger: tiling.Exchanger) -> None:
        exchanger.__class__ = Slow if exchanger.rank == 0 else tiling.ThreadExchanger
        x = tiling.tile(image((1, 1, 16, 6)), (2, 1), exchanger)
        with tiling.overlap("always"):
            if exchanger.rank == 1:
                assert computed.wait(300), "rank 0 waited for the halo before it computed anything"
            assert_close(conv(x).full(), expected, 1e-12, "output")

    on_threads(2, run)


def test_auto_measures_both_ways_and_keeps_one() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1).double()
    expected = conv(image((1, 2, 24, 24)))

    def run(exchanger: tiling.Exchanger) -> None:
        x = tiling.tile(image((1, 2, 24, 24)), (2, 1), exchanger)
        for _ in range(2 * overlapping.TRIALS + 2):
            assert_close(conv(x).full(), expected, 1e-12, "output")
        (trial,) = exchanger.trials.values()
        assert [len(t) for t in trial.seconds] == [overlapping.TRIALS] * 2
        assert trial.winner is (min(trial.seconds[1][1:]) < min(trial.seconds[0][1:]))

    on_threads(2, run)


def test_auto_does_not_try_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "SMALL", 1 << 15)

    def run(exchanger: tiling.Exchanger) -> None:
        nn.Conv2d(2, 2, 3, padding=1).double()(tiling.tile(image((1, 2, 24, 24)), (2, 1), exchanger))
        assert not exchanger.trials

    on_threads(2, run)


def test_auto_does_not_try_what_is_mostly_seam() -> None:

    def run(exchanger: tiling.Exchanger) -> None:
        nn.Conv2d(2, 2, 9, padding=4).double()(tiling.tile(image((1, 2, 14, 8)), (2, 1), exchanger))
        (trial,) = exchanger.trials.values()
        assert trial.winner is False and trial.seconds == ([], [])

    on_threads(2, run)


@pytest.mark.parametrize("faster", [False, True])
def test_a_trial_ends_with_the_faster_way(faster: bool) -> None:
    trial = OverlapTrial()
    while trial.winner is None:
        overlapped = trial.next()
        trial.add(overlapped, 1.0 if overlapped is faster else 2.0)
    assert trial.next() is faster


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, never, always"), tiling.overlap("sometimes"):  # type: ignore[arg-type]
        pass
