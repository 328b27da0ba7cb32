"""From the tiles of an operator's input to those of its output: what each rank computes, needs, lacks and pads.

Knows specs and reaches; nothing of tensors or of the operator's arithmetic. Everything is worked out once and cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from halocline.tiling.boxes import (
    Box,
    Interval,
    Reach,
    Window,
    clip,
    contains,
    intersect_interval,
    is_empty,
    out_cuts,
)
from halocline.tiling.spec import TileSpec


@dataclass(frozen=True, eq=False)
class Geometry:
    """How one operator runs on the tiles of one spec. The last six fields are this rank's."""

    source: TileSpec
    out: TileSpec
    need: tuple[Box, ...]
    """By rank, the input box it needs, inside the image."""
    exchange: bool
    """Whether any rank needs pixels that it does not hold; then all ranks take part in an exchange."""
    out_box: Box
    """The output box to compute."""
    in_box: Box
    """The input box to compute it from: need[rank]."""
    padded: Box
    """`in_box` with the part of its padding that must be written out, i.e. which the operator cannot add itself."""
    padding: tuple[int, ...]
    """Per dim, the padding on both sides that the operator adds itself."""
    empty: bool
    """Whether this rank computes nothing."""
    plain: bool
    """Whether the operator runs on the tensor just as it is held."""


def output_spec(spec: TileSpec, reaches: tuple[Reach, ...]) -> TileSpec:
    """The tiles of the output when each output pixel lives where the centre of its window lives."""
    return spec.with_cuts(tuple(out_cuts(r, c) for r, c in zip(reaches, spec.cuts)))


def needed(reaches: tuple[Reach, ...], out: Box) -> Box:
    """The input box that an output box needs; may reach outside the image. Empty for an empty one."""
    if is_empty(out):
        return ((0, 0),) * len(out)
    return tuple(r.needs(i) for r, i in zip(reaches, out))


def given(reaches: tuple[Reach, ...], held: Box, size: tuple[int, ...]) -> Box:
    """The largest output box computable from an input box."""
    return tuple(r.gives(i, n) for r, i, n in zip(reaches, held, size))


def geometry(spec: TileSpec, reaches: tuple[Reach, ...], own_padding: bool = True) -> Geometry:
    """How an operator with one reach per spatial dim runs on the tiles of `spec`."""
    where = _geometry(spec, reaches, own_padding)
    watcher = spec.exchanger.watcher
    if watcher is not None:
        watcher(spec, reaches, where.out)
    return where


@lru_cache(maxsize=4096)
def _geometry(spec: TileSpec, reaches: tuple[Reach, ...], own_padding: bool) -> Geometry:
    """Work out an operator.

    `own_padding` says that the operator can add equal padding on both sides of a dim by itself, without a copy, and
    that it ignores pixels which its last stride does not reach.
    When every rank already holds what it needs, margins are used and shrink; else each rank fetches what it needs.
    """
    rank = spec.exchanger.rank
    out = output_spec(spec, reaches)
    need = tuple(clip(needed(reaches, box), spec.size) for box in out.own)
    exchange = not all(contains(held, box) for held, box in zip(spec.have, need))
    if not exchange and not spec.bare:
        # A rank whose outputs read nothing but padding needs no pixels, and computes no more than those.
        have = tuple(
            own if is_empty(own) or is_empty(box) else given(reaches, held, spec.size)
            for own, box, held in zip(out.own, need, spec.have)
        )
        out = out.with_have(have)
        need = tuple(clip(needed(reaches, box), spec.size) for box in have)
    out_box, in_box = out.held, need[rank]
    pads = _pads(reaches, out_box, spec.size)
    empty = is_empty(out_box)
    # A dim whose padding is equal on both sides is left to the operator, provided that there are pixels to pad.
    delegate = own_padding and not empty and not is_empty(in_box)
    padding = tuple(lo if lo == hi and delegate else 0 for lo, hi in pads)
    padded = tuple((a - lo + p, b + hi - p) for (a, b), (lo, hi), p in zip(in_box, pads, padding))
    plain = not exchange and not empty and padded == in_box and _as_held(reaches, in_box, spec.held, own_padding)
    return Geometry(spec, out, need, exchange, out_box, in_box, padded, padding, empty, plain)


def _as_held(reaches: tuple[Reach, ...], needed: Box, held: Box, strides: bool) -> bool:
    """Whether the operator gives the same outputs from what is held; with `strides`, the last may leave pixels unread.

    So a convolution of kernel 1 and stride 2, which does not read the last row, needs no copy without that row.
    """
    for reach, (a, b), (start, stop) in zip(reaches, needed, held):
        unread = stop - b
        if a != start or (unread and not (strides and isinstance(reach, Window) and 0 < unread < reach.stride)):
            return False
    return True


def _pads(reaches: tuple[Reach, ...], out: Box, size: tuple[int, ...]) -> tuple[Interval, ...]:
    """Per dim, how many padding pixels lie before and after the needed pixels that are inside the image."""
    if is_empty(out):
        return ((0, 0),) * len(out)
    pads = []
    for reach, interval, n in zip(reaches, out, size):
        if not reach.pads:
            pads.append((0, 0))
            continue
        start, stop = reach.needs(interval)
        a, b = intersect_interval((start, stop), (0, n))
        pads.append((a - start, stop - b))
    return tuple(pads)


@lru_cache(maxsize=4096)
def border(padded: Box, inside: Box) -> tuple[tuple[slice, ...], ...]:
    """Slices, relative to `padded`, of disjoint slabs that cover its pixels outside `inside`."""
    if padded == inside:
        return ()
    parts = []
    for (start, stop), (a, b) in zip(padded, inside):
        parts.append(((start, a, False), (a, b, True), (b, stop, False)))
    slabs = []
    for choice in product(*parts):
        if all(kept for _, _, kept in choice) or any(a >= b for a, b, _ in choice):
            continue
        slabs.append(tuple(slice(a - s, b - s) for (a, b, _), (s, _) in zip(choice, padded)))
    return tuple(slabs)
