"""Flips, turns and rolls of an image that is cut into tiles."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline import tiling
from halocline.tiling import NoCommunication
from harness.ranks import assert_exact, image

SHAPE = (2, 4, 7, 9)
CASES = [
    lambda x: x.flip(-1),
    lambda x: x.flip(2, 3) + x,
    lambda x: x.flip([1]),
    lambda x: F.conv2d(torch.flip(x, (3,)), image((2, 4, 3, 2))),
    lambda x: F.max_pool2d(x.flip(-1), 2)[..., ::2].flip(2).transpose(2, 3),
    lambda x: x[0, 0].fliplr() + x[1, 0].flipud(),
    lambda x: torch.rot90(x, 1, (2, 3)),
    lambda x: torch.rot90(x, 2, (2, 3)),
    lambda x: torch.rot90(x, -1, (2, 3)),
    lambda x: torch.rot90(x, 4, (2, 3)),
    lambda x: torch.roll(x, 2, -1),
    lambda x: torch.roll(x, (-3, 4), (2, 3)),
    lambda x: torch.roll(x, (1, 1), (1, 2)),
    lambda x: torch.roll(x, 9, 3),
    lambda x: torch.roll(x, 5),
    lambda x: x.roll(shifts=(-70,)),
]


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_moving_pixels(number: int, margin: int) -> None:
    assert_exact(CASES[number], SHAPE, grid=(2, 2), margin=margin, tiled=True)
    assert_exact(CASES[number], SHAPE, cuts=[[0, 1, 2, 7], [0, 9]], tiled=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(-15, 15), st.integers(1, 4))
def test_any_roll(size: int, shift: int, tiles: int) -> None:
    assert_exact(lambda x: torch.roll(x, shift, 2), (1, 2, size), grid=(min(size, tiles),))


def test_a_flip_moves_no_pixel() -> None:
    x = tiling.tile(image(SHAPE), (1, 3), NoCommunication(0, 3))
    y = x.flip(-1)
    assert y.spec.box == ((0, 7), (6, 9)) and torch.equal(y.local, x.local.flip(-1))
