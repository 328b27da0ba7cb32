"""Adaptive pooling to any size, average and max, with ties and with fewer outputs than tiles."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.ranks import assert_exact


def with_ties(x: Tensor) -> Tensor:
    """Few different values, many of them 0: of equal ones only one may get the gradient, and always the same."""
    return F.relu(x) * (F.relu(x) > 0.5) + (x > 1)


@pytest.mark.parametrize("out", [1, 2, 3, 5, (3, 4), (None, 4), (1, 3), (4, 3), 12])
def test_two_dims(out: Any) -> None:
    for cut in ({"grid": (2, 2)}, {"grid": (1, 4)}, {"cuts": [[0, 1, 2, 8], [0, 9]]}, {"grid": (2, 2), "margin": 2}):
        assert_exact(nn.AdaptiveAvgPool2d(out), (2, 3, 8, 9), **cut)  # type: ignore[arg-type]
        assert_exact(lambda x: F.adaptive_max_pool2d(with_ties(x), out), (2, 3, 8, 9), **cut)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4), st.integers(0, 2))
def test_any_size_of_a_line(size: int, out: int, tiles: int, margin: int) -> None:
    grid = (min(tiles, size),)
    assert_exact(lambda x: F.adaptive_avg_pool1d(x, out), (1, 2, size), grid=grid, margin=margin)
    assert_exact(lambda x: F.adaptive_max_pool1d(with_ties(x), out), (1, 2, size), grid=grid, margin=margin)


def test_three_dims() -> None:
    assert_exact(nn.AdaptiveAvgPool3d((3, 2, 4)), (1, 2, 4, 3, 5), grid=(2, 1, 2))
    assert_exact(nn.AdaptiveMaxPool3d((3, None, 1)), (1, 2, 4, 3, 5), grid=(2, 1, 2))


def test_one_pixel_leaves_the_tiling() -> None:
    assert_exact(nn.AdaptiveAvgPool2d(1), (2, 3, 8, 9), grid=(2, 2), tiled=False)
    assert_exact(nn.AdaptiveMaxPool2d(1), (2, 3, 8, 9), grid=(2, 2))


def test_a_pyramid_of_poolings() -> None:
    def run(x: Tensor) -> Tensor:
        levels = [F.interpolate(F.adaptive_avg_pool2d(x, n), x.shape[2:], mode="bilinear") for n in (2, 3, 6)]
        return torch.cat([x, *levels], 1)

    assert_exact(run, (1, 2, 8, 9), grid=(2, 2))
