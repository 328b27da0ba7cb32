"""Tile grids: the shapes that slice methods mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.plan.stage import tile_grid


@pytest.mark.parametrize(
    ("parts", "grid"),
    [(1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (5, (1, 5)), (6, (2, 3)), (8, (2, 4)), (9, (3, 3)), (12, (3, 4))],
)
def test_square(parts: int, grid: tuple[int, int]) -> None:
    assert tile_grid(parts, "square") == grid


@given(st.integers(1, 5000))
def test_square_is_the_squarest(parts: int) -> None:
    rows, columns = tile_grid(parts)
    assert rows * columns == parts and rows <= columns
    assert not any(parts % r == 0 for r in range(rows + 1, columns) if r <= parts // r)


def test_vertical_cuts_the_width_and_horizontal_the_height() -> None:
    assert tile_grid(4, "vertical") == (1, 4)
    assert tile_grid(4, "horizontal") == (4, 1)
