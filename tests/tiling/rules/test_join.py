"""Joining, splitting, flipping and rolling: cat, stack and their kin along any dim, flips, turns and rolls."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact, image

SHAPE = (2, 4, 7, 9)
CASES = [
    lambda x: torch.cat([x, x * 2], 1),
    lambda x: torch.cat((x, x * 2), dim=0),
    lambda x: torch.concat([x, image((2, 1, 7, 9))], 1),
    lambda x: torch.cat([torch.empty(0, dtype=x.dtype), x], 1),
    lambda x: torch.stack([x, x], 1),
    lambda x: torch.stack([x, -x], -1),
    lambda x: torch.hstack([x, x]),
    lambda x: torch.vstack([x, x]),
    # Along the image.
    lambda x: torch.cat([x, x * 2, x[:, :, :3]], 2),
    lambda x: torch.cat([x, image((2, 4, 7, 3))], -1),
    lambda x: torch.dstack([x, x * 2]),
    lambda x: F.conv2d(torch.cat([x.flip(3), x, x.flip(3)], 3), image((2, 4, 3, 3)), padding=1),
    # Branches whose cuts differ.
    lambda x: torch.cat([F.conv2d(x, image((4, 4, 3, 3))), x[:, :, 1:-1, :-2]], 1),
    lambda x: torch.cat([F.avg_pool2d(x, 3, 1), x[:, :, 2:, 2:]], 2),
]


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_joining(number: int, margin: int) -> None:
    assert_exact(CASES[number], SHAPE, grid=(2, 2), margin=margin, tiled=True)
    assert_exact(CASES[number], SHAPE, cuts=[[0, 1, 2, 7], [0, 9]], tiled=True)


@pytest.mark.parametrize("dim", [1, 2])
def test_a_plain_parameter_gets_its_gradient(dim: int) -> None:
    shape = list(SHAPE)
    shape[dim] = 3
    assert_exact(lambda x, p: torch.cat([x, p, x], dim), SHAPE, grid=(2, 2), plain=[image(shape).requires_grad_()])


def test_tiles_without_pixels() -> None:
    def run(x: Tensor) -> Tensor:
        small = F.max_pool2d(x, 4)
        return torch.cat([torch.cat([small, small * 2], 1), torch.stack([small, small], 2).flatten(1, 2)], 3)

    assert_exact(run, (2, 4, 4, 8), grid=(1, 4))


def test_what_is_refused() -> None:
    x = tiling.tile(torch.zeros(SHAPE), (2, 2), NoCommunication(0, 4))
    with pytest.raises(ValueError, match="differ in other dims than 1"):
        torch.cat([x, x[..., 1:]], 1)
    with pytest.raises(UntiledOperation, match="which dims are cut"):
        torch.cat([x, x.permute(0, 2, 3, 1)], 0)
    with pytest.raises(UntiledOperation, match="out="):
        torch.cat([x, x], 1, out=torch.empty(0))


def test_a_plain_tensor_of_one_column_is_joined_to_empty_tiles() -> None:
    """It used to be taken for one that broadcasts, and stayed a column where the tile holds none."""
    column = image((2, 2, 6, 1), 5).requires_grad_()
    assert_exact(lambda x, p: torch.cat([x[..., 2:3], p], 1), (2, 3, 6, 5), grid=(1, 3), plain=[column])


CASES_FLIP = [
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
@pytest.mark.parametrize("number", range(len(CASES_FLIP)))
def test_moving_pixels(number: int, margin: int) -> None:
    assert_exact(CASES_FLIP[number], SHAPE, grid=(2, 2), margin=margin, tiled=True)
    assert_exact(CASES_FLIP[number], SHAPE, cuts=[[0, 1, 2, 7], [0, 9]], tiled=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(-15, 15), st.integers(1, 4))
def test_any_roll(size: int, shift: int, tiles: int) -> None:
    assert_exact(lambda x: torch.roll(x, shift, 2), (1, 2, size), grid=(min(size, tiles),))


def test_a_flip_moves_no_pixel() -> None:
    x = tiling.tile(image(SHAPE), (1, 3), NoCommunication(0, 3))
    y = x.flip(-1)
    assert y.spec.box == ((0, 7), (6, 9)) and torch.equal(y.local, x.local.flip(-1))
