"""Interpolation to another size, and sampling at places that an image's own values or plain boxes name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from halocline.tiling.rules.interpolate import nearest
from harness.ranks import assert_exact, image

MODES = ["nearest", "nearest-exact", "bilinear", "bicubic", "area"]
SIZES = [
    {"size": (16, 18)},
    {"scale_factor": 2},
    {"scale_factor": (1.5, 0.7)},
    {"scale_factor": 1.3, "recompute_scale_factor": True},
    {"size": (3, 5)},
    {"size": (8, 9)},
    {"size": 1},
    {"size": (5, 20)},
    {"scale_factor": 3.0},
]
CUTS = [{"grid": (2, 2)}, {"grid": (1, 4)}, {"cuts": [[0, 1, 2, 8], [0, 9]]}, {"grid": (2, 2), "margin": 2}]


@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("mode", MODES)
def test_two_dims(mode: str, number: int) -> None:
    for cut in CUTS:
        assert_exact(lambda x: F.interpolate(x, mode=mode, **SIZES[number]), (2, 3, 8, 9), **cut)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_corners_and_antialiasing(mode: str, number: int) -> None:
    for more in ({"align_corners": True}, {"antialias": True}, {"antialias": True, "align_corners": True}):
        for cut in CUTS[1:3]:
            assert_exact(
                lambda x, more=more: F.interpolate(x, mode=mode, **SIZES[number], **more),
                (1, 2, 8, 9),
                **cut,  # type: ignore[arg-type]
            )


@settings(max_examples=80, deadline=None)
@given(
    mode=st.sampled_from(["nearest", "nearest-exact", "linear", "area"]),
    size=st.integers(1, 60),
    out=st.integers(1, 60),
    tiles=st.integers(1, 4),
    margin=st.integers(0, 1),
    corners=st.booleans(),
)
def test_any_size_of_a_line(mode: str, size: int, out: int, tiles: int, margin: int, corners: bool) -> None:
    align = corners if mode == "linear" else None
    assert_exact(
        lambda x: F.interpolate(x, out, mode=mode, align_corners=align),
        (1, 2, size),
        grid=(min(tiles, size),),
        margin=margin,
    )


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(["nearest", "nearest-exact", "linear"]),
    size=st.integers(2, 120),
    scale=st.floats(0.1, 4.0),
    tiles=st.integers(1, 2),
)
def test_any_scale_of_a_line(mode: str, size: int, scale: float, tiles: int) -> None:
    if int(size * scale) < 1:
        return
    try:
        assert_exact(lambda x: F.interpolate(x, scale_factor=scale, mode=mode), (1, 1, size), grid=(tiles,))
    except UntiledOperation:  # see the next test
        assert int(size * scale) == size


def test_a_scale_that_leaves_the_size_is_refused() -> None:
    """2 pixels by 1.25 are 2 pixels again: by torch's forward both copies of the first, by its backward of each."""
    with pytest.raises(UntiledOperation, match="recompute_scale_factor=True"):
        assert_exact(lambda x: F.interpolate(x, scale_factor=1.25), (1, 1, 2), grid=(1,))
    assert_exact(lambda x: F.interpolate(x, scale_factor=1.25, recompute_scale_factor=True), (1, 1, 2), grid=(1,))


def test_sizes_whose_gradient_torch_rounds_otherwise() -> None:
    """In float64 torch copies one pixel and returns the gradient to another for a few sizes: so do tiles."""
    odd = []
    for size in range(1, 61):
        for out in range(1, 61):
            table = nearest(size, out, None, False, torch.float64, torch.device("cpu"))
            if table.copied != table.credited:
                odd.append((size, out))
    assert odd
    for size, out in odd[:5]:
        assert_exact(lambda x, out=out: F.interpolate(x, out), (1, 2, size), grid=(min(3, size),))


def test_three_dims_and_modules() -> None:
    for mode in ("nearest", "trilinear", "area"):
        assert_exact(nn.Upsample((5, 6, 4), mode=mode), (1, 2, 4, 3, 5), grid=(2, 1, 2))
    assert_exact(nn.Upsample(scale_factor=2, mode="trilinear"), (1, 2, 4, 3, 5), grid=(2, 1, 2))
    assert_exact(nn.UpsamplingBilinear2d(scale_factor=2), (1, 2, 4, 6), grid=(2, 2))
    assert_exact(nn.UpsamplingNearest2d(size=(9, 9)), (1, 2, 4, 6), grid=(2, 2))


def test_an_enlargement_keeps_channels_last_and_dtype() -> None:
    def run(x: Tensor) -> Tensor:
        x = x.to(memory_format=torch.channels_last)
        out = F.interpolate(x, scale_factor=2, mode="bilinear")
        assert out.is_contiguous(memory_format=torch.channels_last)
        return out

    assert_exact(run, (2, 4, 6, 7), grid=(2, 2))
    for mode in MODES:
        for size in ((12, 14), (5, 9)):
            assert_exact(
                lambda x, mode=mode, size=size: F.interpolate(x, size, mode=mode),
                (1, 2, 6, 7),
                grid=(2, 2),
                dtype=torch.bfloat16,
                tolerance=2e-2,
            )


def test_autocast_gives_the_dtype_of_one_device() -> None:
    def run(x: Tensor) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return [F.interpolate(x, size, mode=mode) for size in ((12, 14), (5, 9)) for mode in MODES]

    for dtype in (torch.float32, torch.bfloat16):
        assert_exact(run, (1, 2, 6, 7), grid=(2, 2), dtype=dtype, tolerance=2e-2)


def test_tiles_without_pixels() -> None:
    for mode in MODES:
        assert_exact(
            lambda x, mode=mode: F.interpolate(F.interpolate(F.max_pool2d(x, 4), scale_factor=2, mode=mode), (5, 9)),
            (1, 2, 8, 8),
            grid=(1, 4),
        )


def test_a_decoder_that_asks_for_the_size_of_its_skip() -> None:
    def run(x: Tensor) -> Tensor:
        low = F.avg_pool2d(x, 2, ceil_mode=True)
        return torch.cat([F.interpolate(low, x.shape[2:], mode="bilinear"), x], 1)

    assert_exact(run, (1, 2, 7, 9), grid=(2, 2))


def test_what_is_refused() -> None:
    x = tiling.tile(torch.zeros(1, 3, 8, 6), (1, 2), NoCommunication(0, 2))
    with pytest.raises(UntiledOperation):
        F.interpolate(x, 3, mode="linear")
    with pytest.raises(ValueError, match="give one of"):
        F.interpolate(x)
    with pytest.raises(ValueError, match="align_corners"):
        F.interpolate(x, 4, align_corners=True)


GRIDS: tuple[Any, ...] = ({"grid": (1, 3)}, {"cuts": ((0, 6, 9), (0, 2, 12))})
BOXES = torch.tensor([[0, 1, 1, 9, 7], [1, 0.5, 2, 6, 6.5], [0, 3, 0, 4, 8]], dtype=torch.float64).requires_grad_()


def bilinear(input: Tensor, sample: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Of each box of a sample, the values at rows y and columns x (boxes, bins, points), as torchvision has it."""
    _, channels, height, width = input.size()
    y, x = y.clamp(min=0), x.clamp(min=0)
    top, left = y.int().clamp(max=height - 1), x.int().clamp(max=width - 1)
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    low, near = y - top, x - left

    def read(rows: Tensor, columns: Tensor) -> Tensor:
        return input[
            sample[:, None, None, None, None, None],
            torch.arange(channels)[None, :, None, None, None, None],
            rows[:, None, :, None, :, None],
            columns[:, None, None, :, None, :],
        ]

    def both(a: Tensor, b: Tensor) -> Tensor:
        return a[:, None, :, None, :, None] * b[:, None, None, :, None, :]

    above = both(1 - low, 1 - near) * read(top, left) + both(1 - low, near) * read(top, right)
    return above + both(low, 1 - near) * read(bottom, left) + both(low, near) * read(bottom, right)


def roi_align(input: Tensor, boxes: Tensor, bins: int = 3, points: int = 2) -> Tensor:
    start, end = boxes[:, [2, 1]] - 0.5, boxes[:, [4, 3]] - 0.5
    step = ((end - start) / bins)[:, :, None, None]
    steps = torch.arange(bins)[:, None] + (torch.arange(points) + 0.5) / points
    rows, columns = (start[:, :, None, None] + steps * step).unbind(1)
    return bilinear(input, boxes[:, 0].int(), rows, columns).mean((-2, -1))


@pytest.mark.parametrize("kwargs", GRIDS)
def test_roi_align_equals_one_device(kwargs: Any) -> None:
    assert_exact(roi_align, (2, 3, 9, 12), plain=[BOXES], **kwargs)


def deformable(x: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    moved = F.conv2d(x, offsets, padding=1)
    rows, columns = torch.arange(height, dtype=x.dtype)[:, None], torch.arange(width, dtype=x.dtype)
    total = torch.zeros_like(x[:, :1])
    for tap in range(9):
        y = (rows + tap // 3 - 1 + moved[:, 2 * tap]) * 2 / (height - 1) - 1
        x_ = (columns + tap % 3 - 1 + moved[:, 2 * tap + 1]) * 2 / (width - 1) - 1
        found = F.grid_sample(x, torch.stack([x_, y], -1), align_corners=True)
        total = total + torch.einsum("bchw,oc->bohw", found, weight[:, :, tap])
    return total


@pytest.mark.parametrize("kwargs", GRIDS)
def test_a_deformable_convolution_equals_one_device(kwargs: Any) -> None:
    plain = [(0.1 * image((18, 3, 3, 3))).requires_grad_(), image((4, 3, 9), 1).requires_grad_()]
    assert_exact(deformable, (2, 3, 9, 12), plain=plain, tolerance=1e-11, tiled=True, **kwargs)
