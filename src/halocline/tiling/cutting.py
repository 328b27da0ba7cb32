"""Cutting an image into tiles and cutting tiles anew: the way into the tiling.

Knows the user's grids and cuts; moving pixels is route.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch.distributed as dist
from torch import Tensor

import halocline.tiling.rules  # noqa: F401  (a tile without rules could do nothing)
from halocline.tiling.boxes import Cuts, balanced_cuts, check_cuts, shape
from halocline.tiling.exchanger import Exchanger, exchanger_for
from halocline.tiling.plain import cut
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor

Group = dist.ProcessGroup | Exchanger | None


def tile(
    image: Tensor,
    grid: Sequence[int] | None = None,
    group: Group = None,
    *,
    size: Sequence[int] | None = None,
    cuts: Sequence[Sequence[int]] | None = None,
) -> TileTensor:
    """This rank's tile of an image, whose last len(grid) dims are spatial and are cut into `grid` tiles, row-major.

    Every rank of the group passes the whole image, or its own tile and the whole image's `size`. `cuts` gives the
    boundaries of uneven tiles per dim, each from 0 to the size, in place of `grid`. The gradient of a whole image is
    whole on every rank; that of a tile, which must be a leaf if it has one, is the tile's.
    """
    exchanger = exchanger_for(group)
    if (grid is None) == (cuts is None):
        raise ValueError(f"give one of grid={grid} and cuts={cuts}, e.g. grid=(1, {exchanger.size})")
    spatial = len(grid if grid is not None else cuts or ())
    if not 1 <= spatial <= min(3, image.ndim):
        raise ValueError(f"an image of shape {tuple(image.shape)} cannot be cut in {spatial} dims; use 1, 2 or 3")
    whole = tuple(image.shape[-spatial:]) if size is None else tuple(size)
    if len(whole) != spatial:
        raise ValueError(f"size {whole} has {len(whole)} dims but the grid has {spatial}; give one size per grid dim")
    spec = _spec(_cuts(whole, grid, cuts), exchanger)
    tiles = prod(spec.grid)
    if tiles != exchanger.size:
        product = " x ".join(str(n) for n in spec.grid)
        raise ValueError(
            f"a grid of {product} = {tiles} tiles needs {tiles} ranks but the group has {exchanger.size}; "
            f"use grid=(1, {exchanger.size}) or another group"
        )
    if size is not None:
        if tuple(image.shape[-spatial:]) != shape(spec.box):
            raise ValueError(
                f"rank {exchanger.rank} owns {shape(spec.box)} pixels ({spec.box}) of size {whole} but passed a tile "
                f"of {tuple(image.shape[-spatial:])}; pass that tile, or give cuts= that match the tiles"
            )
        if image.requires_grad and not image.is_leaf:
            raise ValueError(
                f"the tile of rank {exchanger.rank} was computed from tensors that want a gradient, and would give "
                f"them this rank's part of it: pass the whole image, or compute on the tile that this function returns"
            )
        return TileTensor.wrap(image, spec)
    return TileTensor.wrap(image if exchanger.size == 1 else cut(image, spec), spec)


def redistribute(
    x: TileTensor, grid: Sequence[int] | None = None, *, cuts: Sequence[Sequence[int]] | None = None
) -> TileTensor:
    """The same tensor cut into other tiles, on the first ranks of the group; differentiable.

    A grid of fewer tiles than ranks leaves the last ranks an empty tile; they still take part in what follows.
    """
    if (grid is None) == (cuts is None):
        raise ValueError(f"give one of grid={grid} and cuts={cuts}")
    exchanger = x.spec.exchanger
    new = _cuts(x.spec.size, grid, cuts)
    tiles = prod(len(c) - 1 for c in new)
    if len(new) != len(x.spec.dims) or tiles > exchanger.size:
        raise ValueError(
            f"cuts {new} make {tiles} tiles in {len(new)} dims; the tensor has {len(x.spec.dims)} spatial dims and "
            f"the group {exchanger.size} ranks"
        )
    return x.retiled(x.spec.with_cuts(new, tuple(range(tiles))))


@lru_cache(maxsize=256)
def _spec(cuts: tuple[Cuts, ...], exchanger: Exchanger) -> TileSpec:
    tiles = prod(len(c) - 1 for c in cuts)
    # A grid that does not fit the group is refused by the caller, which can say why; the spec only has to exist.
    return TileSpec(cuts, exchanger, ranks=tuple(r % exchanger.size for r in range(tiles)))


def _cuts(size: tuple[int, ...], grid: Sequence[int] | None, cuts: Sequence[Sequence[int]] | None) -> tuple[Cuts, ...]:
    count = len(grid if grid is not None else cuts or ())
    if count != len(size):
        raise ValueError(f"a grid or cuts of {count} dims do not fit an image of {len(size)} spatial dims {size}")
    if grid is not None:
        return tuple(balanced_cuts(n, parts) for n, parts in zip(size, grid))
    assert cuts is not None
    return tuple(check_cuts(c, n) for c, n in zip(cuts, size))
