"""How an operator's padded input comes together on this rank: from its tile, from received strips, and from padding.

Knows one Geometry, whose work is planned once; nothing of operators or gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from halocline.tiling.boxes import Box, intersect, is_empty, shape, slices
from halocline.tiling.geometry import Geometry, border
from halocline.tiling.route import Index, Route, index, route
from halocline.tiling.strides import CHANNELS_LAST, contiguous_strides, empty_as
from halocline.tiling.strip import copy_pixels

TILE = -1
"""The number of the tile itself among the sources; strips count from 0."""
FILL = -2


@dataclass(frozen=True, eq=False)
class Assembly:
    """How the pixels of one box come together."""

    size: tuple[int, ...]
    taken: tuple[tuple[int, Index, Index], ...]
    """(source, where in it, where in the box)"""
    fills: tuple[Index, ...]
    """Where in the box lies padding."""
    row: tuple[int, tuple[tuple[int, int], ...]] | None
    """If whole sources just lie side by side: the dim, and each (source or FILL, its length), in order."""
    whole: bool
    """Whether the box is the target of the route, with all that was received in it."""

    def halo_alone(self, tile: Tensor, strips: Sequence[Tensor], way: Route) -> Tensor:
        """The box with what was received in it, and zero elsewhere."""
        box = empty_as(tile, way.resize(tile, self.size)).zero_()
        strips = way.each(strips, tile)
        for source, there, here in self.taken:
            if source != TILE:
                box[here].copy_(strips[source][there])
        return box

    def return_halo(self, grad: Tensor, strips: Sequence[Tensor]) -> None:
        """Add the gradient of the box, where it was received, to that of the strips."""
        for source, there, here in self.taken:
            if source != TILE:
                strips[source][there].add_(grad[here])

    def run(self, tile: Tensor, strips: Sequence[Tensor], way: Route, fill: float) -> Tensor:
        """The box, in the memory format of `tile`. Equal to a source where that is all there is in it: a view."""
        if self.row is not None:
            strips = way.each(strips, tile)
            dim, lengths = self.row
            parts = []
            for source, length in lengths:
                if source == TILE:
                    parts.append(tile)
                elif source == FILL:
                    size = list(tile.shape)
                    size[dim] = length
                    parts.append(tile.new_full(size, fill))
                else:
                    parts.append(strips[source])
            if len(parts) == 1:
                return parts[0]
            if tile.stride() == contiguous_strides(tuple(tile.shape)):
                return torch.cat(parts, dim)
            last = CHANNELS_LAST.get(tile.ndim)
            if last is not None and tile.is_contiguous(memory_format=last):  # one fast kernel, if all are
                parts = [p.contiguous(memory_format=last) for p in parts]
            return torch.cat(parts, dim, out=empty_as(tile, way.resize(tile, self.size)))
        box = empty_as(tile, way.resize(tile, self.size))
        for place in self.fills:
            box[place] = fill
        if self.whole:
            for source, there, here in self.taken:
                if source == TILE:
                    copy_pixels(box[here], tile[there])
            way.place(box, strips)
            return box
        strips = way.each(strips, tile)
        for source, there, here in self.taken:
            box[here].copy_((tile if source == TILE else strips[source])[there])
        return box


@lru_cache(maxsize=4096)
def halo_route(where: Geometry) -> Route:
    """What this rank sends and receives so that every rank has the pixels it needs."""
    spec = where.source
    owned = spec.own if where.exchange else spec.have
    return route(owned, spec.held, where.need, where.padded, spec.dims, spec.exchanger.rank)


@lru_cache(maxsize=4096)
def assembly(where: Geometry, box: Box) -> Assembly:
    """How `box`, a part of the padded input, comes together from the tile and the strips of `halo_route(where)`."""
    spec, way = where.source, halo_route(where)
    rank = spec.exchanger.rank
    owned = spec.own if where.exchange else spec.have
    sources: list[tuple[int, Box, Box]] = [(TILE, intersect(owned[rank], where.need[rank]), spec.held)]
    for i, strip in enumerate(way.receives):
        arrived = intersect(owned[strip.peer], where.need[rank])
        sources.append((i, arrived, arrived))
    taken = []
    for number, part, held in sources:
        common = intersect(part, box)
        if not is_empty(common) and not is_empty(part):
            taken.append((number, common, held))
    return Assembly(
        shape(box),
        tuple(
            (n, index(slices(part, held), spec.dims), index(slices(part, box), spec.dims)) for n, part, held in taken
        ),
        tuple(index(slab, spec.dims) for slab in border(box, intersect(where.in_box, box))),
        _row(taken, box, spec.dims),
        box == where.padded,
    )


def _row(
    taken: list[tuple[int, Box, Box]], box: Box, dims: tuple[int, ...]
) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """The `row` of an Assembly, where whole sources lie side by side in one dim."""
    if is_empty(box) or any(part != held for _, part, held in taken):
        return None
    differing = {d for _, part, _ in taken for d, (a, b) in enumerate(zip(part, box)) if a != b}
    if not any(n == TILE for n, _, _ in taken) or len(differing) > 1:
        return None
    d = differing.pop() if differing else 0
    lengths = []
    at = box[d][0]
    for number, part, _ in sorted(taken, key=lambda part: part[1][d]):
        start, stop = part[d]
        if start > at:
            lengths.append((FILL, start - at))
        elif start < at:
            return None
        lengths.append((number, stop - start))
        at = stop
    if at < box[d][1]:
        lengths.append((FILL, box[d][1] - at))
    return dims[d], tuple(lengths)
