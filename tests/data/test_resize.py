"""Resizing by box against Pillow's resizing of the whole image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from halocline.data.resize import blend, resized

Size = tuple[int, int]


def ours(image: np.ndarray, size: Size, box: tuple[tuple[int, int], tuple[int, int]]) -> np.ndarray:
    lines = [blend(has, wanted, interval) for has, wanted, interval in zip(image.shape[1:], size, box)]
    seen = [slice(*line.seen) for line in lines]
    return resized(image[:, seen[0], seen[1]], *lines)


def pillows(image: np.ndarray, size: Size) -> np.ndarray:
    picture = Image.fromarray(image.transpose(1, 2, 0)).resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(picture).transpose(2, 0, 1)


@pytest.mark.parametrize("side", [1, 7, 16, 31, 32, 33, 48, 64, 100, 224, 512])
def test_a_square_is_pillows_bit_for_bit(side: int) -> None:
    image = np.random.default_rng(side).integers(0, 256, (3, 32, 32), np.uint8)
    assert np.array_equal(ours(image, (side, side), ((0, side), (0, side))), pillows(image, (side, side)))


sides = st.integers(1, 90)


@given(st.data(), sides, sides, sides, sides, st.integers(0, 99))
def test_any_box_is_the_same_part_of_the_whole(
    data: st.DataObject, height: int, width: int, rows: int, columns: int, seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (3, height, width), np.uint8)
    size = (rows, columns)
    whole = ours(image, size, ((0, rows), (0, columns)))
    # Pillow 13 shrinks some images columns first, which rounds otherwise.
    assert np.abs(whole.astype(int) - pillows(image, size)).max() <= 1
    box = []
    for side in size:
        start = data.draw(st.integers(0, side - 1))
        box.append((start, data.draw(st.integers(start + 1, side))))
    assert np.array_equal(ours(image, size, (box[0], box[1])), whole[:, slice(*box[0]), slice(*box[1])])


def test_only_what_a_box_needs_is_read() -> None:
    assert blend(32, 64, (0, 16)).seen == (0, 9)
    assert blend(32, 32, (8, 16)).seen == (8, 16)
    assert blend(32, 16, (8, 16)).seen == (15, 32)
