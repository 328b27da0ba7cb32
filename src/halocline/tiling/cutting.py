"""Cutting an image into tiles and cutting tiles anew: the way into the tiling.

Knows the user's grids and cuts; moving pixels is route.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import halocline.tiling.rules  # noqa: F401  (a tile without rules could do nothing)
from halocline.tiling.boxes import Cuts, balanced_cuts, check_cuts, shape, slices
from halocline.tiling.exchanger import Exchanger, exchanger_for
from halocline.tiling.route import index, move
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

    Every rank of the group passes the whole image, or its own piece and the whole image's `size`. `cuts` gives the
    boundaries of uneven tiles per dim, each from 0 to the size, in place of `grid`. The gradient of a leaf image given
    whole is whole on every rank; that of a piece is the piece's.
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
                f"rank {exchanger.rank} owns {shape(spec.box)} pixels ({spec.box}) of size {whole} but passed a piece "
                f"of {tuple(image.shape[-spatial:])}; pass that piece, or give cuts= that match the pieces"
            )
        return TileTensor.wrap(image, spec)
    if image.requires_grad and image.is_leaf and not isinstance(image, nn.Parameter) and torch.is_grad_enabled():
        return TileTensor.wrap(_Piece.apply(image, spec), spec)
    piece = _piece(image, spec)
    return TileTensor.wrap(piece, spec)


def _piece(image: Tensor, spec: TileSpec) -> Tensor:
    whole = tuple((0, n) for n in spec.size)
    if spec.box == whole:
        return image
    # A copy, so that the whole image need not stay in memory for the sake of one tile of it.
    return image[index(slices(spec.box, whole), spec.dims)].clone(memory_format=torch.preserve_format)


class _Piece(torch.autograd.Function):
    """A tile of a whole image that every rank holds; its backward gathers, so that the gradient is whole, too."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, spec: TileSpec) -> Tensor:
        ctx.spec = spec
        piece = _piece(image, spec)
        return piece.view_as(piece) if piece is image else piece

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        spec = ctx.spec
        whole = tuple((0, n) for n in spec.size)
        return move(grad, spec.own, (whole,) * spec.exchanger.size, spec.exchanger, spec.dims), None


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
