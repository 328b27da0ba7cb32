"""A stage: consecutive layers placed together, the shape of the team that runs them, and the grids that tiles form.
Knows no rank numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import isqrt

from halocline.plan.require import require_choice, require_degree, require_type

OPTIMIZER, PARAMETERS = "optimizer", "parameters"
SHARDS = ("none", OPTIMIZER, PARAMETERS)
"""What the ranks that share a stage may divide among them."""
SLICE_METHODS = ("square", "vertical", "horizontal")
"""Of now-dl: how a number of tiles becomes a grid."""


@dataclass(frozen=True)
class Stage:
    """One stage of a plan."""

    layers: tuple[int, int]
    """The stage's layers, first to last + 1, counted over the whole model."""
    tiles: tuple[int, ...] = (1, 1)
    """The grid of tiles, one number per spatial dim: rows, columns (and depth for volumes)."""
    lanes: int = 1
    """How many ranks share the stage by splitting each microbatch's samples."""
    tensor: int = 1
    """Tensor-parallel degree: how many ranks share each weight matrix."""
    recompute: bool = False
    """Keep only the stage's input for the backward and recompute the rest."""
    shard: str = "none"
    """What the ranks that share the stage's parameters divide among them instead of each keeping all: none, optimizer
    (its state, ZeRO-1) or parameters (those, their gradients and their state, FSDP)."""

    def __post_init__(self) -> None:
        require_type("stage.layers", self.layers, tuple, "two whole numbers, e.g. [0, 4]")
        if len(self.layers) != 2:
            raise ValueError(
                f"stage.layers has {len(self.layers)} numbers, not 2: write [first, last + 1], e.g. [0, 4]"
            )
        first, stop = self.layers
        require_type("stage.layers", first, int, "whole numbers")
        require_type("stage.layers", stop, int, "whole numbers")
        if first < 0:
            raise ValueError(f"stage.layers = [{first}, {stop}] starts at {first}: count from 0, the first layer")
        if stop <= first:
            raise ValueError(
                f"stage.layers = [{first}, {stop}] holds {stop - first} layers: a stage needs at least 1, "
                f"e.g. [{first}, {first + 1}]"
            )
        require_type("stage.tiles", self.tiles, tuple, "a list of whole numbers, e.g. [2, 2]")
        if not 1 <= len(self.tiles) <= 3:
            raise ValueError(f"stage.tiles has {len(self.tiles)} dims: images have 1, 2 or 3, e.g. [2, 2]")
        for count in self.tiles:
            require_degree("stage.tiles", count)
        require_degree("stage.lanes", self.lanes)
        require_degree("stage.tensor", self.tensor)
        require_type("stage.recompute", self.recompute, bool, "true or false")
        require_choice("stage.shard", self.shard, SHARDS)

    @property
    def tile_count(self) -> int:
        return math.prod(self.tiles)

    @property
    def team_size(self) -> int:
        """How many ranks compute this stage together: tiles x lanes x tensor."""
        return self.tile_count * self.lanes * self.tensor

    @property
    def shape(self) -> tuple[tuple[int, ...], int, int]:
        """What two stages must have in common to sit on the same ranks."""
        return self.tiles, self.lanes, self.tensor


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
