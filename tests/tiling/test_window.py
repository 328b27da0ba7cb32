"""Convolution and pooling on random tiles against one device: outputs, input gradients and weight gradients."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from halocline import tiling
from halocline.tiling import strip, window
from harness.ranks import assert_exact, on_threads


@pytest.fixture(params=["large", "small", "packed"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test the way large tiles go, the way small ones go, and with strips packed as on a GPU."""
    if request.param != "small":
        monkeypatch.setattr(window, "SMALL", 0)
    if request.param == "packed":
        monkeypatch.setattr(strip, "PACKED_ON", ("cpu",))
        monkeypatch.setattr(window, "INDEXED_ON", ("cpu",))


GRIDS = {1: [(2,), (3,), (4,)], 2: [(1, 2), (3, 1), (2, 2), (2, 3)], 3: [(1, 1, 2), (2, 1, 2), (2, 2, 2)]}


@st.composite
def cut_images(draw: st.DrawFn, dims: int, low: int = 4, high: int = 13) -> tuple[tuple[int, ...], list[list[int]]]:
    """A size and uneven cuts of it."""
    grid = draw(st.sampled_from(GRIDS[dims]))
    size, cuts = [], []
    for parts in grid:
        n = draw(st.integers(max(low, parts), high if dims < 3 else 8))
        inner = draw(st.sets(st.integers(1, n - 1), min_size=parts - 1, max_size=parts - 1)) if parts > 1 else set()
        size.append(n)
        cuts.append([0, *sorted(inner), n])
    return tuple(size), cuts


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...], list[list[int]], int]:
    dims = draw(st.sampled_from([1, 2, 2, 2, 3]))
    size, cuts = draw(cut_images(dims))
    kernel = tuple(draw(st.integers(1, 5 if dims < 3 else 3)) for _ in size)
    dilation = tuple(draw(st.integers(1, 2)) for _ in size)
    stride: tuple[int, ...] = tuple(draw(st.integers(1, 3)) for _ in size)
    padding: object = tuple(draw(st.integers(0, 3)) for _ in size)
    mode = draw(st.sampled_from(["number", "number", "number", "same", "valid"]))
    if mode == "same":
        stride, padding = (1,) * dims, "same"
    elif mode == "valid":
        padding = "valid"
    groups = draw(st.sampled_from([1, 1, 2]))
    if padding != "same":
        pads = padding if isinstance(padding, tuple) else (0,) * dims
        kernel = tuple(k if d * (k - 1) + 1 <= n + 2 * p else 1 for k, d, n, p in zip(kernel, dilation, size, pads))
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    conv = kind(2, 4, kernel, stride, padding, dilation, groups, bias=draw(st.booleans()))  # type: ignore[arg-type]
    return conv, (draw(st.integers(1, 2)), 2, *size), cuts, draw(st.sampled_from([0, 0, 1, 3, 6]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(convolutions())
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_convolution(case: tuple[nn.Module, tuple[int, ...], list[list[int]], int]) -> None:
    conv, shape, cuts, margin = case
    assert_exact(conv, shape, cuts=cuts, margin=margin, tiled=True)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_pooling(data: st.DataObject) -> None:
    dims = data.draw(st.sampled_from([1, 2, 2, 3]))
    size, cuts = data.draw(cut_images(dims))
    kernel = tuple(data.draw(st.integers(1, 4)) for _ in size)
    stride = data.draw(st.one_of(st.none(), st.tuples(*[st.integers(1, 3)] * dims)))
    padding = tuple(data.draw(st.integers(0, k // 2)) for k in kernel)
    ceil_mode = data.draw(st.booleans())
    kind = data.draw(st.sampled_from(["max", "average", "lp"]))
    if kind == "max":
        dilation = tuple(
            data.draw(st.integers(1, 2)) if 2 * (k - 1) + 1 <= n + 2 * p else 1
            for k, n, p in zip(kernel, size, padding)
        )
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
        run = lambda x: function(x, kernel, stride, padding, dilation, ceil_mode)  # noqa: E731
    elif kind == "average":
        function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
        include = data.draw(st.booleans())
        extra = {"divisor_override": data.draw(st.sampled_from([None, 3]))} if dims > 1 else {}
        run = lambda x: function(x, kernel, stride, padding, ceil_mode, include, **extra)  # noqa: E731
    else:
        function = (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)[dims - 1]
        one = kernel[0] if dims == 1 else kernel
        step = stride[0] if dims == 1 and stride else stride
        run = lambda x: function(x, 2.0, one, step, ceil_mode)  # noqa: E731
    margin = data.draw(st.sampled_from([0, 0, 2, 5]))
    assert_exact(run, (2, 2, *size), cuts=cuts, margin=margin, tiled=True)


def test_a_halo_wider_than_its_neighbours_takes_several_of_them() -> None:
    assert_exact(nn.Conv1d(1, 1, 9, padding=4), (1, 1, 9), cuts=[[0, 1, 2, 3, 9]])
    assert_exact(nn.Conv2d(1, 1, 7, padding=3), (1, 1, 6, 8), cuts=[[0, 1, 2, 6], [0, 1, 8]])


def test_tiles_that_run_empty_stay_exact() -> None:
    layers = [nn.Conv2d(2, 2, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(2, 3, 3, 2, 1), nn.Conv2d(3, 3, 1)]
    net = nn.Sequential(*layers, nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3, 2, 1))
    assert_exact(net, (2, 2, 9, 10), grid=(2, 4))
    assert_exact(net, (2, 2, 7, 7), cuts=[[0, 1, 2, 7], [0, 7]])


def test_a_tile_without_batch_dim() -> None:
    assert_exact(nn.Conv2d(3, 2, 3, padding=1), (3, 8, 9), grid=(2, 2))


def test_padding_wider_than_the_image() -> None:
    assert_exact(nn.Conv2d(1, 1, 3, padding=6), (1, 1, 3, 4), grid=(1, 2))


def test_channels_last_is_kept() -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)

    def run(exchanger: tiling.Exchanger) -> None:
        x = torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last)
        y = conv(tiling.tile(x, (2, 2), exchanger))
        assert y.local.is_contiguous(memory_format=torch.channels_last)
        assert not y.local.is_contiguous()

    on_threads(4, run)


def test_a_strided_convolution_needs_one_message_per_peer() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1, bias=False)

    def run(exchanger: tiling.Exchanger) -> None:
        x = tiling.tile(torch.randn(1, 2, 8, 8), (2, 2), exchanger)
        traffic = tiling.traffic(exchanger)
        traffic.reset()
        conv(x)
        assert (traffic.exchanges, traffic.messages) == (1, 3)
        assert traffic.bytes == (4 + 4 + 1) * 2 * 4
        F.relu(F.max_pool2d(x, 2))
        nn.Conv2d(2, 2, 1)(x)
        assert traffic.exchanges == 1

    on_threads(4, run)


def test_a_margin_is_used_before_anything_is_sent() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1)

    def run(exchanger: tiling.Exchanger) -> None:
        x = tiling.tile(torch.randn(1, 2, 16, 16), (2, 2), exchanger)
        x = x.fetched(x.spec.grown(3).have)
        traffic = tiling.traffic(exchanger)
        traffic.reset()
        for margin in (2, 1, 0):
            x = F.relu(conv(x))
            assert x.spec == x.spec.grown(margin)
            assert traffic.exchanges == 0
        conv(x)
        assert traffic.exchanges == 1

    on_threads(4, run)


def test_saved_activations_are_one_devices_share() -> None:
    net = nn.Sequential(*[m for _ in range(6) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())])
    weights = {p.untyped_storage().data_ptr() for p in net.parameters()}

    def saved_bytes(x: torch.Tensor) -> int:
        storages: dict[int, int] = {}
        kept = []

        def pack(t: torch.Tensor) -> torch.Tensor:
            kept.append(t)  # so that no address is used twice
            if t.untyped_storage().data_ptr() not in weights:
                storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            net(x)
        return sum(storages.values())

    image = torch.randn(1, 8, 256, 256)
    one_device = saved_bytes(image.clone())
    on_two = on_threads(2, lambda e: saved_bytes(tiling.tile(image, (1, 2), e)))
    assert max(on_two) <= 1.05 * one_device / 2
