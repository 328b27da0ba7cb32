"""Tile grids: the shapes that slice methods mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.plan.stage import grids_of, tile_grid


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


@pytest.mark.parametrize(
    ("text", "grids"),
    [
        ("2x2", ((2, 2),)),
        ("2x2,1x2", ((2, 2), (1, 2))),
        ("4, 2X1", ((2, 2), (2, 1))),
        ("6", ((2, 3),)),
        ("2x1x2", ((2, 1, 2),)),
    ],
)
def test_grids_in_words(text: str, grids: tuple[tuple[int, ...], ...]) -> None:
    assert grids_of(text) == grids


@pytest.mark.parametrize("text", ["", "2x", "x2", "2x2,", "two", "2.5", "2*2"])
def test_what_is_no_grid_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no list of grids: .* should be one, e.g. 2x2 or 4"):
        grids_of(text)
