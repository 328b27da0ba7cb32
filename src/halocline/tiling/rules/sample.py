"""Sampling an image at given places: any pixel may be read, so the image is gathered; the places may stay tiles."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.plain import for_tiles
from halocline.tiling.rules.gathered import whole
from halocline.tiling.tensor import TileTensor, rule, untiled


@rule(F.grid_sample)
def grid_sample(input: Tensor, grid: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Places (batch, height, width, 2) that are tiles give tiles (batch, channels, height, width); others a tensor."""
    if not isinstance(grid, TileTensor):
        return F.grid_sample(whole(input), grid, *args, **kwargs)
    places = grid.ndim
    if not all(1 - places <= d <= -2 for d in grid.spec.dims):
        raise untiled(F.grid_sample, (input, grid), why="its grid may be cut between batch and coordinates only")
    out = grid.spec.with_dims(tuple(d + 1 for d in grid.spec.dims))
    image = input.everywhere() if isinstance(input, TileTensor) else for_tiles(input, grid.spec.exchanger)
    mine = grid.local
    if not mine.numel():
        held = tuple(mine.shape[1:-1])
        # Connected to both tensors, so that every rank's backward takes part in the same exchanges.
        none = image.sum() * 0 + mine.sum() * 0
        return TileTensor.wrap(none.expand(image.shape[0], image.shape[1], *held), out)
    return TileTensor.wrap(F.grid_sample(image, mine, *args, **kwargs), out)
