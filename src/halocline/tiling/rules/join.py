"""Joining tensors: cat, stack and the functions named after them. Along batch or channels it is local; along an image's
dim the pixels are dealt out anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.boxes import Cuts
from halocline.tiling.rules.elementwise import align
from halocline.tiling.rules.shape import from_front
from halocline.tiling.spec import TileSpec
from halocline.tiling.splice import Segment, splice
from halocline.tiling.tensor import TileTensor, find_tiles, rule, untiled


def _cat(function: Callable[..., Any]) -> None:
    @rule(function)
    def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        return joined(function, list(tensors), dim)


def joined(function: Any, tensors: list[Tensor], dim: int) -> Tensor:
    ndim = find_tiles(tensors)[0].ndim
    # A plain tensor without values is skipped, as torch skips it.
    tensors = [t for t in tensors if isinstance(t, TileTensor) or tuple(t.shape) != (0,)]
    if any(t.ndim != ndim for t in tensors):
        raise ValueError(f"tensors of shapes {[tuple(t.shape) for t in tensors]} cannot be joined; give equal dims")
    tiles = find_tiles(tensors)
    dim = from_front(dim, ndim)
    if any(t.spec.dims != tiles[0].spec.dims for t in tiles):
        raise untiled(function, tensors, why="the tiles differ in which dims are cut")
    spatial = tiles[0].spec.positions(ndim)
    for other in tensors:
        sizes = zip(other.shape, tensors[0].shape)
        if any(a != b for d, (a, b) in enumerate(sizes) if d != dim):
            raise ValueError(f"shapes {[tuple(t.shape) for t in tensors]} differ in other dims than {dim}")
    if dim in spatial:
        return _along_pixels(tensors, tiles[0].spec, spatial.index(dim))
    values, spec = align(tensors, function)
    return TileTensor.wrap(torch.cat(values, dim), spec)


def _along_pixels(tensors: list[Tensor], lead: TileSpec, axis: int) -> TileTensor:
    """Each rank keeps its share of the total: the cuts of the result are the sums of the cuts of the parts."""
    lines: list[Cuts] = []
    for i, t in enumerate(tensors):
        size = t.shape[lead.dims[axis]]
        line = tuple(size * c // lead.size[axis] for c in lead.cuts[axis])
        if isinstance(t, TileTensor):
            own = t.spec.cuts[axis]
            line = own if len(own) == len(line) else line
            cuts = (*lead.cuts[:axis], line, *lead.cuts[axis + 1 :])
            tensors[i] = t.retiled(t.spec.with_cuts(cuts, lead.ranks))
        lines.append(line)
    total = tuple(sum(cut) for cut in zip(*lines))
    segments, at = [], 0
    for i, line in enumerate(lines):
        segments.append(Segment(i, 0, at, line[-1]))
        at += line[-1]
    out = lead.with_cuts((*lead.cuts[:axis], total, *lead.cuts[axis + 1 :]))
    return splice(tensors, segments, axis, out)


def _stack(function: Callable[..., Any], dim: int) -> None:
    @rule(function)
    def stack(tensors: Sequence[Tensor], dim: int = dim) -> Tensor:
        if any(t.shape != tensors[0].shape for t in tensors):
            raise ValueError(
                f"tensors of shapes {[tuple(t.shape) for t in tensors]} cannot be stacked; give equal ones"
            )
        values, spec = align(tensors, function)
        place = torch.unsqueeze(TileTensor.wrap(values[0], spec), dim)
        assert isinstance(place, TileTensor)
        return TileTensor.wrap(torch.stack(values, dim), place.spec)


def _named(function: Callable[..., Any], dim: int, ndim: int) -> None:
    @rule(function)
    def stack(tensors: Sequence[Tensor]) -> Tensor:
        if any(t.ndim < ndim for t in tensors):
            raise untiled(function, (tensors,), why=f"tensors of fewer than {ndim} dims; use torch.cat")
        return joined(function, list(tensors), dim)


for _function in (torch.cat, torch.concat, torch.concatenate):
    _cat(_function)
_stack(torch.stack, 0)
_named(torch.vstack, 0, 2)
_named(torch.row_stack, 0, 2)
_named(torch.hstack, 1, 2)
_named(torch.dstack, 2, 3)
