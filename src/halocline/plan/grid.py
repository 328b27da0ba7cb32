"""Grids of tiles: in words, as 2x2,1x2, and from now-dl's number of parts and `--slice-method`. Knows no image."""

from __future__ import annotations

from math import isqrt

from halocline.plan.require import require_choice, require_degree

SLICE_METHODS = ("square", "vertical", "horizontal")


def tile_grid(parts: int, method: str = "square") -> tuple[int, int]:
    """Rows and columns of `parts` tiles, numbered row-major; cuts fall at equal fractions of the image, to the pixel.

        square 4     square 6      square 5 (prime)   vertical 4    horizontal 3
        +---+---+    +--+--+--+    +-+-+-+-+-+        +-+-+-+-+     +-------+
        | 0 | 1 |    | 0| 1| 2|    |0|1|2|3|4|        |0|1|2|3|     |   0   |
        +---+---+    +--+--+--+    +-+-+-+-+-+        +-+-+-+-+     +-------+
        | 2 | 3 |    | 3| 4| 5|                                     |   1   |
        +---+---+    +--+--+--+                                     +-------+
                                                                    |   2   |
                                                                    +-------+

    `square` is as square as the number allows, with no more rows than columns; `vertical` cuts the width into columns,
    `horizontal` the height into rows.
    """
    require_degree("num_spatial_parts", parts)
    require_choice("slice_method", method, SLICE_METHODS)
    if method == "vertical":
        return 1, parts
    if method == "horizontal":
        return parts, 1
    rows = next(rows for rows in range(isqrt(parts), 0, -1) if parts % rows == 0)
    return rows, parts // rows


def grids_of(text: str) -> tuple[tuple[int, ...], ...]:
    """The grid of each tiled stage: 2x2,1x2, or numbers of tiles, whose grids are as square as they can be."""
    found: list[tuple[int, ...]] = []
    for word in text.split(","):
        counts = word.strip().lower().split("x")
        if not all(count.removeprefix("-").isdecimal() for count in counts):
            raise ValueError(f"tiles = {text!r} is no list of grids: {word!r} should be one, e.g. 2x2 or 4")
        numbers = tuple(map(int, counts))
        for number in numbers:
            require_degree("tiles", number)
        found.append(numbers if len(numbers) > 1 else tile_grid(numbers[0]))
    return tuple(found)
