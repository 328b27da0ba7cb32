"""Transposed convolution on tiles equals one device, whatever its kernel, stride, paddings, dilation and groups."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(2, 9),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    padding=st.integers(0, 3),
    extra=st.integers(0, 3),
    dilation=st.integers(1, 3),
    tiles=st.integers(1, 3),
    margin=st.integers(0, 2),
    bias=st.booleans(),
)
def test_one_dim(
    size: int,
    kernel: int,
    stride: int,
    padding: int,
    extra: int,
    dilation: int,
    tiles: int,
    margin: int,
    bias: bool,
) -> None:
    extra = min(extra, max(stride, dilation) - 1)
    if (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1 < 1:
        return
    net = nn.ConvTranspose1d(2, 3, kernel, stride, padding, extra, dilation=dilation, bias=bias)
    assert_exact(net, (2, 2, size), grid=(min(tiles, size),), margin=margin, tiled=True)


@pytest.mark.parametrize("grid", [(1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize(
    "net",
    [
        nn.ConvTranspose2d(4, 6, 2, 2),
        nn.ConvTranspose2d(4, 6, 4, 2, 1, groups=2),
        nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1, groups=4),
        nn.ConvTranspose2d(4, 3, (5, 1), (1, 3), (2, 0)),
    ],
)
def test_two_dims(net: nn.Module, grid: tuple[int, int]) -> None:
    assert_exact(net, (2, 4, 7, 9), grid=grid)
    assert_exact(net, (4, 7, 9), grid=grid, margin=2)


def test_three_dims() -> None:
    assert_exact(nn.ConvTranspose3d(2, 3, 3, 2, 1, 1), (1, 2, 4, 3, 5), grid=(2, 1, 2))


def test_tiles_without_pixels() -> None:
    net = nn.Sequential(nn.MaxPool2d(4), nn.ConvTranspose2d(3, 2, 3, 2, 1, 1), nn.ConvTranspose2d(2, 2, 1, 3))
    assert_exact(net, (1, 3, 8, 8), grid=(1, 4))
    assert_exact(net, (1, 3, 8, 8), cuts=[[0, 1, 8], [0, 7, 8]])


def test_outputs_that_no_input_writes() -> None:
    """output_padding beyond the kernel's reach, all of it on a tile that is empty on the way in."""
    net = nn.Sequential(nn.MaxPool1d(4), nn.ConvTranspose1d(2, 3, 1, 1, 0, 2, dilation=3))
    assert_exact(net, (1, 2, 8), grid=(4,))


def test_channels_last_is_kept() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        out = nn.functional.conv_transpose2d(
            x.to(memory_format=torch.channels_last), torch.ones(4, 4, 4, 4, dtype=x.dtype), stride=2, padding=1
        )
        assert out.is_contiguous(memory_format=torch.channels_last)
        return out

    assert_exact(run, (2, 4, 6, 8), grid=(2, 2))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UntiledOperation, match="last 2 dims"):
        assert_exact(nn.ConvTranspose2d(4, 3, 2, 2), (1, 4, 8, 8), grid=(2,), dims=(-3,))  # channels
    x = tiling.tile(torch.zeros(1, 3, 8, 8), (2, 1), NoCommunication(0, 2))
    with pytest.raises(ValueError, match="needs 4 input channels"):
        nn.functional.conv_transpose2d(x, torch.zeros(4, 1, 2, 2))
    with pytest.raises(ValueError, match="output_padding"):
        nn.functional.conv_transpose2d(x, torch.zeros(3, 1, 2, 2), output_padding=1)


def test_a_weight_that_writes_no_output_has_a_gradient_of_zero() -> None:
    """Kernel 1, stride 2, padding 1: of two inputs both miss the one output, and one device's gradient is zero."""
    for grid in ((1,), (2,)):
        assert_exact(nn.ConvTranspose1d(2, 2, 1, 2, 1, bias=False), (2, 2, 2), grid=grid)
