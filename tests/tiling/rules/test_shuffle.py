"""Pixel and channel shuffles of an image that is cut into tiles."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact

SHAPE = (2, 8, 6, 12)


@pytest.mark.parametrize("cut", [{"grid": (2, 2)}, {"cuts": [[0, 1, 3, 6], [0, 12]]}, {"grid": (2, 2), "margin": 2}])
def test_shuffles(cut: dict) -> None:  # type: ignore[type-arg]
    for function in (
        nn.PixelShuffle(2),
        nn.PixelUnshuffle(2),
        nn.PixelUnshuffle(3),
        nn.ChannelShuffle(4),
        lambda x: F.pixel_shuffle(x[0], 2),
        lambda x: F.pixel_unshuffle(x[0], 6),
        lambda x: F.conv2d(F.pixel_shuffle(x, 2), torch.ones(1, 2, 3, 3, dtype=x.dtype), padding=1),
        lambda x: x.unfold(1, 2, 3),
    ):
        assert_exact(function, SHAPE, **cut, tiled=True)
    for function in (lambda x: F.unfold(x, 3, padding=1, stride=2), lambda x: x.unfold(2, 2, 2)):
        assert_exact(function, SHAPE, **cut, tiled=False)
    assert_exact(lambda x: torch.native_channel_shuffle(x, 2), SHAPE, **cut, gradients=False)


def test_tiles_without_pixels() -> None:
    def run(x: Tensor) -> Tensor:
        x = F.max_pool2d(x, (3, 6))
        return F.channel_shuffle(F.pixel_unshuffle(F.pixel_shuffle(x, 2), 4), 2)

    assert_exact(run, SHAPE, grid=(1, 4))


def test_columns_folded_into_an_image() -> None:
    assert_exact(lambda x: F.fold(x, (4, 5), 2), (2, 8, 12), grid=(3,), tiled=False)


def test_what_does_not_divide_is_refused() -> None:
    x = tiling.tile(torch.zeros(1, 3, 8, 6), (1, 2), NoCommunication(0, 2))
    with pytest.raises(ValueError, match="multiple of 4 channels, got 3"):
        F.pixel_shuffle(x, 2)
    with pytest.raises(ValueError, match=r"by 3 .* \(8, 6\)"):
        F.pixel_unshuffle(x, 3)
    with pytest.raises(ValueError, match="multiple of 2 channels"):
        F.channel_shuffle(x, 2)
    with pytest.raises(UntiledOperation, match="must not be cut"):
        F.channel_shuffle(x.permute(0, 2, 1, 3), 2)
