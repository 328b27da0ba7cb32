"""What a process reads of a file falls with the box it needs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tifffile

from halocline.data.picture import open_picture
from halocline.tiling.boxes import Box, balanced_cuts

SIDE = 1024


def bytes_for(path: str, box: Box) -> int:
    picture = open_picture(path)
    picture.read(box)
    picture.close()
    return picture.bytes_read


def boxes(parts: int) -> list[Box]:
    cuts = balanced_cuts(SIDE, parts)
    return [((top, bottom), (left, right)) for top, bottom in pairwise(cuts) for left, right in pairwise(cuts)]


def largest(path: str) -> Callable[[int], int]:
    return lambda parts: max(bytes_for(path, box) for box in boxes(parts))


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


@pytest.mark.parametrize("compression", [None, "zlib", "jpeg"])
def test_tiles_are_decoded_selectively(tmp_path: Path, noise: np.ndarray, compression: str | None) -> None:
    path = tmp_path / "tiled.tif"
    tifffile.imwrite(path, noise, tile=(128, 128), compression=compression, photometric="rgb")
    needs = largest(str(path))
    assert needs(1) >= path.stat().st_size * 0.95
    assert needs(2) < 0.27 * needs(1)
    assert needs(4) < 0.075 * needs(1)


def test_uncompressed_strips_cost_the_box(tmp_path: Path, noise: np.ndarray) -> None:
    path = tmp_path / "strip.tif"
    tifffile.imwrite(path, noise, photometric="rgb")  # one strip
    needs = largest(str(path))
    header = 4096
    assert needs(2) <= noise.nbytes / 4 + header
    assert needs(4) <= noise.nbytes / 16 + header


def test_compressed_strips_cost_the_rows_of_the_box(tmp_path: Path, noise: np.ndarray) -> None:
    path = tmp_path / "strips.tif"
    tifffile.imwrite(path, noise, rowsperstrip=64, compression="zlib", photometric="rgb")
    needs = largest(str(path))
    assert 0.45 * needs(1) < needs(2) < 0.55 * needs(1)
    assert 0.2 * needs(1) < needs(4) < 0.3 * needs(1)


def test_a_png_is_read_whole(tmp_path: Path, noise: np.ndarray) -> None:
    from PIL import Image

    path = tmp_path / "whole.png"
    Image.fromarray(noise).save(path, compress_level=1)
    assert largest(str(path))(2) == path.stat().st_size


def test_all_tiles_together_read_each_tile_once(tmp_path: Path, noise: np.ndarray) -> None:
    """Where the ranks' boxes fall on the file's tiles, nothing is read twice."""
    path = tmp_path / "tiled.tif"
    tifffile.imwrite(path, noise, tile=(128, 128), photometric="rgb")
    header = bytes_for(str(path), ((0, 1), (0, 1))) - 128 * 128 * 3
    together = sum(bytes_for(str(path), box) - header for box in boxes(4))
    assert together == noise.nbytes
