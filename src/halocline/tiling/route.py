"""The one way to move pixels: each rank has a box, each rank needs a box, and one packed message per pair of ranks
brings what is missing; the gradient takes the same way back and is added up. Knows nothing of operators.

    rank      0       1                      0         1
    have   [0 . . 4)[4 . . 8)      need   [0 . . . 5)[3 . . . 8)      rank 0 sends [3, 4), rank 1 sends [4, 5)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.boxes import Box, contains, intersect, is_empty, shape, slices
from halocline.tiling.exchanger import Exchanger, Wait
from halocline.tiling.function import Function
from halocline.tiling.strides import alias, empty_as
from halocline.tiling.strip import (
    Strip,
    add,
    as_rows,
    by_strip,
    copy_pixels,
    empty_rows,
    pack,
    packed,
    place,
    unpack,
)

Index = tuple[Any, ...]


def index(parts: Sequence[slice], dims: tuple[int, ...]) -> Index:
    """The index that takes `parts` of the spatial `dims` (negative) of a tensor, and all of the others."""
    full: list[Any] = [slice(None)] * -min(dims)
    for part, dim in zip(parts, dims):
        full[dim] = part
    return (Ellipsis, *full)


def computed(tensor: Tensor) -> Tensor:
    """A tensor whose memory holds its values: torch conjugates and negates lazily, and messages carry memory."""
    return tensor.resolve_conj().resolve_neg()


@dataclass(frozen=True, eq=False)
class Route:
    """This rank's part in moving pixels from `source` (a tensor over the box it holds) to `target` (one it needs).

    The strips that arrive are a list of tensors; where they travel as rows (see strip.py), of one: the rows of all.
    """

    dims: tuple[int, ...]
    target: tuple[int, ...]
    """The target's size in the spatial dims."""
    sends: tuple[Strip, ...]
    """Where in the source lies what each peer needs."""
    rounds: tuple[tuple[Strip, ...], ...]
    """`sends`, in order, as groups of disjoint strips."""
    receives: tuple[Strip, ...]
    """Where in the target lies what each peer sends."""
    keep: tuple[Index, Index] | None
    """Where in the source and in the target lies what does not travel."""
    covered: bool
    """Whether every pixel of the target is written."""
    exchange: bool
    """Whether any rank of the group sends anything: all ranks agree on this."""
    same: bool
    """Whether source and target are the same box, all of it kept."""

    def resize(self, like: Tensor, size: tuple[int, ...]) -> list[int]:
        """The shape of `like` with other spatial sizes."""
        result = list(like.shape)
        for dim, n in zip(self.dims, size):
            result[dim] = n
        return result

    def start(self, source: Tensor, exchanger: Exchanger) -> tuple[Wait, list[Tensor]]:
        """Send what peers need; the strips, in the order of `receives`, are filled after the returned wait."""
        source = computed(source)
        return self._start(self.sends, source, self.receives, source, exchanger)

    def start_back(self, grad: Tensor, exchanger: Exchanger) -> tuple[Wait, list[Tensor]]:
        """Send the gradient of what was received back to its owners; the strips are in the order of `sends`."""
        grad = computed(grad)
        return self._start(self.receives, grad, self.sends, grad, exchanger)

    def start_strips_back(
        self, grads: Sequence[Tensor], like: Tensor, exchanger: Exchanger
    ) -> tuple[Wait, list[Tensor]]:
        """The same from the gradients of the strips themselves, in the order of `receives`."""
        return self._start(self.receives, grads, self.sends, like, exchanger)

    def _start(
        self,
        sends: tuple[Strip, ...],
        source: Tensor | Sequence[Tensor],
        receives: tuple[Strip, ...],
        like: Tensor,
        exchanger: Exchanger,
    ) -> tuple[Wait, list[Tensor]]:
        """Send strips, of one tensor or as they are given; as rows, where they travel so."""
        parts: Sequence[Tensor] = ()
        if packed(like, self.dims):
            samples = like.shape[0]
            if not isinstance(source, Tensor):
                parts = [as_rows(strip) for strip in source]
            elif sends:
                parts = by_strip(pack(source, sends), sends, samples)
            arriving = [empty_rows(receives, like)]
            landing: Sequence[Tensor] = by_strip(arriving[0], receives, samples) if receives else ()
        else:
            parts = [s.of(source).contiguous() for s in sends] if isinstance(source, Tensor) else source
            landing = arriving = [like.new_empty(self.resize(like, s.size)) for s in receives]
        sent = {s.peer: t for s, t in zip(sends, parts)}
        return exchanger.start(sent, {s.peer: t for s, t in zip(receives, landing)}), arriving

    def each(self, strips: Sequence[Tensor], like: Tensor) -> Sequence[Tensor]:
        """What arrived in the forward as one tensor per strip, in the order of `receives`."""
        if packed(like, self.dims) and strips:
            return unpack(strips[0], self.receives, like.shape[0]) if self.receives else ()
        return strips

    def give_back(self, grad: Tensor, source_size: tuple[int, ...], exchanger: Exchanger) -> Tensor:
        """The gradient of the source, from that of the target, of which what was received goes back to its owners."""
        strips: list[Tensor] = []
        if self.exchange:
            wait, strips = self.start_back(grad, exchanger)
            wait()
        return self.accumulate(grad, source_size, strips)

    def assemble(self, target: Tensor, source: Tensor, strips: Sequence[Tensor]) -> Tensor:
        """Write what was kept and what was received into the target."""
        if self.keep is not None:
            copy_pixels(target[self.keep[1]], source[self.keep[0]])
        self.place(target, strips)
        return target

    def place(self, target: Tensor, strips: Sequence[Tensor]) -> None:
        """Write what was received into the target."""
        if packed(target, self.dims):
            if self.receives:
                place(target, self.receives, strips[0])
            return
        for where, strip in zip(self.receives, strips):
            target[where.at].copy_(strip)

    def accumulate(self, grad: Tensor, source_size: tuple[int, ...], strips: Sequence[Tensor]) -> Tensor:
        """The gradient of the source: that of what was kept plus what came back from each peer."""
        if self.same and not self.sends:
            return grad
        size = self.resize(grad, source_size)
        if self.keep is None:
            result = empty_as(grad, size).zero_()
        else:
            part = grad[self.keep[1]]
            if list(part.shape) == size and grad.is_contiguous():
                result = part.clone(memory_format=torch.contiguous_format)
            else:
                result = empty_as(grad, size)
                if list(part.shape) != size:
                    result.zero_()
                copy_pixels(result[self.keep[0]], part)
        self.add(result, strips)
        return result

    def add(self, grad: Tensor, strips: Sequence[Tensor]) -> None:
        """Add what came back from each peer to the gradient of the source."""
        if packed(grad, self.dims):
            if self.sends:
                add(grad, self.rounds, strips[0])
            return
        for where, strip in zip(self.sends, strips):
            where.of(grad).add_(strip)


@lru_cache(maxsize=4096)
def route(
    owned: tuple[Box, ...], held: Box, need: tuple[Box, ...], target: Box, dims: tuple[int, ...], rank: int
) -> Route:
    """The route from disjoint `owned` boxes to `need` boxes, both by rank.

    This rank's source tensor covers `held` (its owned box and perhaps a margin, which is never sent), its target
    tensor covers `target` (its needed box and perhaps padding, which is not written).
    When every rank holds what it needs, margins included, nothing travels: pass `owned` = what each rank holds then.
    """
    exchange = any(not contains(own, box) for own, box in zip(owned, need))
    mine, wanted = owned[rank], need[rank]
    rounds: list[list[tuple[int, Box]]] = []
    receives = []
    for peer in range(len(owned)):
        if peer == rank:
            continue
        out = intersect(mine, need[peer])
        if not is_empty(out):
            _join(rounds, peer, out)
        into = intersect(owned[peer], wanted)
        if not is_empty(into):
            receives.append(_strip(peer, into, target, dims))
    keep = None
    kept = intersect(mine, wanted)
    if not is_empty(kept):
        keep = index(slices(kept, held), dims), index(slices(kept, target), dims)
    if not exchange:
        rounds, receives = [], []
    by_round = tuple(tuple(_strip(peer, out, held, dims) for peer, out in parts) for parts in rounds)
    sends = tuple(strip for strips in by_round for strip in strips)
    written = prod(shape(kept)) + sum(prod(s.size) for s in receives)
    covered = written == prod(shape(target))
    same = kept == held == target
    return Route(dims, shape(target), sends, by_round, tuple(receives), keep, covered, exchange, same)


def _join(rounds: list[list[tuple[int, Box]]], peer: int, box: Box) -> None:
    """Put a box into the first round whose boxes are all disjoint from it."""
    for parts in rounds:
        if all(is_empty(intersect(box, other)) for _, other in parts):
            parts.append((peer, box))
            return
    rounds.append([(peer, box)])


def _strip(peer: int, part: Box, whole: Box, dims: tuple[int, ...]) -> Strip:
    cut = [d for d, (a, b) in enumerate(zip(part, whole)) if a != b]
    only = None
    if len(cut) == 1:
        (start, stop), origin = part[cut[0]], whole[cut[0]][0]
        only = dims[cut[0]], start - origin, stop - start
    return Strip(peer, index(slices(part, whole), dims), shape(part), only)


class _Move(Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, way: Route, exchanger: Exchanger) -> Tensor:
        ctx.way, ctx.exchanger = way, exchanger
        ctx.source_size = tuple(source.shape[d] for d in way.dims)
        wait, strips = way.start(source, exchanger)
        target = empty_as(source, way.resize(source, way.target))
        if not way.covered:
            target.zero_()
        wait()
        return way.assemble(target, source, strips)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return Return.apply(grad, ctx.way, ctx.exchanger, ctx.source_size), None, None


class Return(Function):
    """The way back of what was moved, into zeros: what arrived in several copies is added up."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, way: Route, exchanger: Exchanger, source_size: tuple[int, ...]) -> Tensor:
        ctx.way, ctx.exchanger = way, exchanger
        result = way.give_back(grad, source_size, exchanger)
        return alias(result) if result is grad else result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return _Move.apply(grad, ctx.way, ctx.exchanger), None, None, None


def move(
    source: Tensor,
    have: Sequence[Box | None],
    need: Sequence[Box | None],
    exchanger: Exchanger,
    dims: tuple[int, ...],
    held: Box | None = None,
) -> Tensor:
    """Redistribute, differentiably: a tensor over this rank's `have` box becomes one over its `need` box.

    `have` boxes (by rank) are disjoint; `need` boxes may overlap and may leave the image (zero there). A rank that has
    or needs nothing passes None there, and a `source` with 0 pixels and the other sizes (batch, channels) of the rest.
    `held` is the box that `source` covers when that is more than the owned one. Every rank of the group calls this,
    and for the backward every rank's result must be part of what it differentiates.
    """
    nothing: Box = ((0, 0),) * len(dims)
    owned = tuple(b or nothing for b in have)
    wanted = tuple(b or nothing for b in need)
    rank = exchanger.rank
    held = held or owned[rank]
    if owned == wanted and held == owned[rank]:
        return source
    way = route(owned, held, wanted, wanted[rank], dims, rank)
    if not way.exchange and way.covered and way.keep is not None:
        return source[way.keep[0]]  # a smaller part of what is held: a view will do
    return _Move.apply(source, way, exchanger)
