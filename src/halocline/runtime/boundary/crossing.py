"""A crossing: one tensor at the boundary between two stages, cut into boxes over one team and wanted as boxes by
another.

Knows shapes, dtypes and boxes; nothing of messages. Boxes here span all dims of a tensor, batch included, so that
tiles, lanes, and the way from any number of them to any other are one thing: I own these boxes, I need those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import torch
from torch import Tensor

from halocline.plan.stage import Stage
from halocline.tiling.boxes import Box, Cuts, balanced_cuts, shape
from halocline.tiling.strides import memory_order, strides_in
from halocline.tiling.tensor import TileTensor

BATCH = 0
"""The dim of a boundary tensor that counts samples."""


@dataclass(frozen=True)
class Crossing:
    """One tensor at a boundary, as a team holds it. The same on every rank of the team."""

    size: tuple[int, ...]
    """The whole tensor's shape, for one microbatch."""
    dtype: str
    differentiable: bool
    """Whether its gradient goes back: numbers, real or complex, and not counts or masks."""
    cuts: tuple[tuple[int, Cuts], ...] = ()
    """(dim, boundaries) for each dim that is cut; none if every rank of the team holds the whole tensor."""
    order: tuple[int, ...] = ()
    """Its dims as they lie in memory, the outermost first, if that is not their own order. It arrives so: that is the
    order in which random numbers are drawn."""
    twin: bool = False
    """Whether it lies in memory where another of the boundary does, on one device."""
    listed: bool = False
    """Whether it is one of a list, and not of a tuple."""

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def empty(self, box: Box, device: torch.device) -> Tensor:
        """Room for a part of it."""
        strides = strides_in(self.order or tuple(range(len(box))), shape(box))
        return torch.empty_strided(shape(box), strides, dtype=self.torch_dtype, device=device)

    def as_bytes(self, part: Tensor) -> Tensor:
        """The numbers of a part one after the other; conjugated or negated, where that was only noted."""
        if self.order:
            part = part.permute(self.order)
        return part.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)

    def from_bytes(self, flat: Tensor, box: Box) -> Tensor:
        """The same back, without a copy."""
        size = shape(box)
        if not self.order:
            return flat.view(self.torch_dtype).view(size)
        ordered = flat.view(self.torch_dtype).view([size[d] for d in self.order])
        return ordered.permute([self.order.index(d) for d in range(len(size))])

    def box(self, position: tuple[int, ...]) -> Box:
        """What the rank at `position` (one index per cut dim) owns."""
        owned = [(0, n) for n in self.size]
        for (dim, cuts), at in zip(self.cuts, position):
            owned[dim] = (cuts[at], cuts[at + 1])
        return tuple(owned)


def order_of(tensor: Tensor) -> tuple[int, ...]:
    """The order of a tensor's dims in memory, as a Crossing has it."""
    order = memory_order(tensor)
    return () if order == tuple(range(tensor.ndim)) else order


def crossing_of(tensor: Tensor) -> Crossing:
    """How the team holds a tensor that its stage made."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    cuts: list[tuple[int, tuple[int, ...]]] = []
    held = tensor
    if isinstance(tensor, TileTensor):
        cuts = [(dim % tensor.ndim, points) for dim, points in zip(tensor.spec.dims, tensor.spec.cuts)]
        held = tensor.local
    differentiable = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return Crossing(tuple(tensor.shape), dtype, differentiable, tuple(cuts), order_of(held))


def target_crossing(prediction: Crossing, size: Sequence[int], dtype: torch.dtype) -> Crossing:
    """How a team that holds `prediction` holds its target: samples cut alike, and pixels where it has those."""
    cuts, image = dict(prediction.cuts), len(prediction.size) - 2
    found = [(BATCH, cuts[BATCH])] if BATCH in cuts and size else []
    if 0 < image < len(size) and tuple(size[-image:]) == prediction.size[-image:]:
        found += [(len(size) - image + d, cuts[2 + d]) for d in range(image) if 2 + d in cuts]
    return Crossing(tuple(size), str(dtype).removeprefix("torch."), False, tuple(found))


def aligned_cuts(source: Cuts, parts: int) -> Cuts:
    """`parts` intervals whose boundaries fall on the source's wherever both cut at the same fraction of the image.

    Elsewhere a boundary lies inside the source interval that holds its fraction. So two intervals meet only if their
    fractions do, which is what decides who sends to whom before any pixel is known.
    """
    tiles = len(source) - 1
    cuts = []
    for j in range(parts + 1):
        whole, inside = divmod(Fraction(j, parts) * tiles, 1)
        cut = source[int(whole)]
        if inside:
            cut += round(inside * (source[int(whole) + 1] - cut))
        cuts.append(cut)
    return tuple(cuts)


def wanted(crossing: Crossing, stage: Stage) -> Crossing:
    """The same tensor as the team of `stage` wants it: batch cut by its lanes, image dims by its tiles.

    What is no image cannot be cut into tiles: every rank of a team with tiles wants all of it.
    """
    have = dict(crossing.cuts)
    cuts: list[tuple[int, Cuts]] = []
    ndim, dims = len(crossing.size), len(stage.tiles)
    if stage.tile_count > 1 and ndim < dims + 2:
        return replace(crossing, cuts=())
    if stage.lanes > 1 and ndim:
        cuts.append((BATCH, _cut(have, BATCH, crossing.size[BATCH], stage.lanes)))
    if stage.tile_count > 1:
        for offset, parts in enumerate(stage.tiles):
            dim = ndim - dims + offset
            cuts.append((dim, _cut(have, dim, crossing.size[dim], parts)))
    return replace(crossing, cuts=tuple(cuts))


def _cut(have: dict[int, Cuts], dim: int, size: int, parts: int) -> Cuts:
    if dim in have:
        return aligned_cuts(have[dim], parts)
    if size < parts:
        return aligned_cuts((0, size), parts)
    return balanced_cuts(size, parts)


def positions(stage: Stage, crossing: Crossing) -> list[tuple[int, ...]]:
    """For each member of the stage's team (ordered by tile, lane, tensor) its index in each cut dim of the tensor."""
    found = []
    cut = [dim for dim, _ in crossing.cuts]
    for tile in product(*(range(n) for n in stage.tiles)):
        for lane in range(stage.lanes):
            at: list[int] = []
            if BATCH in cut and stage.lanes > 1:
                at.append(lane)
            if len(cut) > len(at):
                at.extend(tile)
            found += [tuple(at)] * stage.tensor
    return found


def box_of(crossing: Crossing, stage: Stage, member: int) -> Box:
    """The box of a tensor that a member of the stage's team holds."""
    return crossing.box(positions(stage, crossing)[member])
