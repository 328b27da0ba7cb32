"""Padding in every mode and of any dim, negative pads included.

Constant pixels are written by the tiles at the border; mirrored and repeated ones come from the pixels near it, by an
exchange where a tile is smaller than its pad; circular ones come from the far end of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.boxes import Box, Interval, is_empty
from halocline.tiling.constant import constant
from halocline.tiling.function import Function
from halocline.tiling.geometry import Geometry
from halocline.tiling.local_operator import Recomputed
from halocline.tiling.rules.index import getitem
from halocline.tiling.rules.join import Segment, from_segments
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import alias, apart, in_format_of
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.window import windowed

Pads = tuple[Interval, ...]


def _padded_cut(cut: int, size: int, lo: int, hi: int) -> int:
    """Where a cut comes to lie. The pad belongs to the tiles that own pixels at the border, never to an empty one."""
    return 0 if cut <= 0 else size + lo + hi if cut >= size else cut + lo


@lru_cache(maxsize=1024)
def _constant_spec(spec: TileSpec, pads: Pads) -> TileSpec:
    """The tiles of the padded image; each rank holds what it held and the pad next to it."""
    return spec.mapped(lambda d, c: _padded_cut(c, spec.size[d], *pads[d]))


def _constant(input: TileTensor, pads: Sequence[Interval], value: complex) -> TileTensor:
    """`pads` by dim from the front, none negative."""
    if not input.spec.bare:  # a margin of a rank that owns nothing has no place in the padded image
        have = tuple(own if is_empty(own) else held for held, own in zip(input.spec.have, input.spec.own))
        input = input.cropped(input.spec.with_have(have))
    spec, ndim = input.spec, input.ndim
    spatial = spec.positions(ndim)
    new = _constant_spec(spec, tuple(pads[d] for d in spatial))
    local = list(pads)
    for d, (a, b), (c, e), n in zip(spatial, spec.held, new.held, spec.size):
        inside = a < b and c < e
        local[d] = (pads[d][0] if inside and a == 0 else 0, pads[d][1] if inside and b == n else 0)
    flat = [n for pair in reversed(local) for n in pair]
    return TileTensor.wrap(in_format_of(torch.constant_pad_nd(input.local, flat, value), input.local), new)


@dataclass(frozen=True)
class Mirror:
    """The reach of a reflecting or repeating pad in one dim of `size` pixels."""

    lo: int
    hi: int
    size: int
    repeat: bool
    """Whether the border pixel is repeated (replicate) or the image is mirrored at it (reflect)."""
    pads: ClassVar[bool] = False

    def source(self, out: int) -> int:
        """The pixel that an output pixel copies."""
        i = out - self.lo
        if self.repeat:
            return min(max(i, 0), self.size - 1)
        return -i if i < 0 else 2 * (self.size - 1) - i if i >= self.size else i

    def out_size(self, size: int) -> int:
        return size + self.lo + self.hi

    def needs(self, out: Interval) -> Interval:
        # Monotone but for the two folds: the ends and the folds inside are all there is to look at.
        turns = [j for j in (self.lo, self.lo + self.size - 1) if out[0] <= j < out[1]]
        used = [self.source(j) for j in (out[0], out[1] - 1, *turns)]
        return min(used), max(used) + 1

    def gives(self, held: Interval, size: int) -> Interval:
        a, b = held
        start, stop = a + self.lo, b + self.lo
        if a <= 0 < b:
            start = 0 if self.repeat else max(0, self.lo - (b - 1))
        if b >= size > a:
            stop = self.out_size(size) if self.repeat else min(self.out_size(size), 2 * size - 1 - a + self.lo)
        return start, max(start, stop)

    def out_cut(self, cut: int) -> int:
        return _padded_cut(cut, self.size, self.lo, self.hi)


@lru_cache(maxsize=1024)
def _copier(mirrors: tuple[Mirror, ...], dims: tuple[int, ...]) -> Recomputed:
    @constant
    def tables(out: Box, given: Box, device: torch.device) -> tuple[tuple[int, Tensor], ...]:
        result = []
        for mirror, dim, (c, d), (a, b) in zip(mirrors, dims, out, given):
            used = [mirror.source(j) - a for j in range(c, d)]
            if used != list(range(b - a)):
                result.append((dim, torch.tensor(used, device=device)))
        return tuple(result)

    def copy(padded: Tensor, where: Geometry) -> Tensor:
        found = tables(where.out_box, where.in_box, padded.device)
        out = padded
        for dim, used in found:
            out = out.index_select(dim, used)
        # A copy in any case: as on one device, what is written to it stays in it.
        return in_format_of(out if found else padded.clone(), padded)

    return Recomputed(copy)


class _Mirrored(Function):
    """The tensor itself. Its gradient depends on it, by zeros: so torch says of a mirroring pad, and what lies before
    one has gradients of zeros in a gradient of gradients, not None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return alias(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return _Tied.apply(grad, *ctx.saved_tensors) if torch.is_grad_enabled() else grad


class _Tied(Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor) -> Tensor:
        return alias(grad)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return grad, torch.zeros_like(grad)


def _mirrored(input: TileTensor, pads: Sequence[Interval], repeat: bool) -> TileTensor:
    spec, ndim = input.spec, input.ndim
    spatial = spec.positions(ndim)
    local = _Mirrored.apply(input.local)
    for d, (lo, hi) in enumerate(pads):
        if d not in spatial and (lo or hi):
            mirror = Mirror(lo, hi, local.shape[d], repeat)
            used = [mirror.source(j) for j in range(mirror.out_size(mirror.size))]
            local = local.index_select(d, torch.tensor(used, device=local.device))
    mirrors = tuple(Mirror(*pads[d], n, repeat) for d, n in zip(spatial, spec.size))
    if all(m.lo == m.hi == 0 for m in mirrors):
        return TileTensor.wrap(in_format_of(local, input.local), spec)
    return windowed(TileTensor.wrap(local, spec), mirrors, _copier(mirrors, spec.dims))


def _circular(input: TileTensor, pads: Sequence[Interval]) -> TileTensor:
    spatial = input.spec.positions(input.ndim)
    for d, (lo, hi) in enumerate(pads):
        size = input.shape[d]
        parts = [(size - lo, 0, lo), (0, lo, size), (0, lo + size, hi)]
        if not lo and not hi:
            continue
        if d not in spatial:
            segments = [input.local.narrow(d, start, length) for start, _, length in parts]
            input = TileTensor.wrap(torch.cat(segments, d), input.spec)
            continue
        axis, spec = spatial.index(d), input.spec
        line = tuple(_padded_cut(c, size, lo, hi) for c in spec.cuts[axis])
        out = spec.with_cuts((*spec.cuts[:axis], line, *spec.cuts[axis + 1 :]))
        input = from_segments([input], [Segment(0, *part) for part in parts if part[2]], axis, out)
    return TileTensor.wrap(input.local.contiguous(), input.spec)


@rule(F.pad, torch.constant_pad_nd)
def pad(input: TileTensor, pad: Sequence[int], mode: Any = "constant", value: complex | None = None) -> Tensor:
    if not isinstance(mode, str):  # torch.constant_pad_nd has the value here
        mode, value = "constant", mode
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise NotImplementedError(f"padding mode {mode!r} is unknown to F.pad; use constant, reflect or replicate")
    given = [int(n) for n in pad]
    ndim = input.ndim
    if len(given) % 2 or len(given) > 2 * ndim:
        raise ValueError(f"pad={given} must be two numbers per dim, of at most {ndim} dims")
    pads = [(0, 0)] * ndim
    for i in range(len(given) // 2):
        pads[ndim - 1 - i] = given[2 * i], given[2 * i + 1]
    spatial = input.spec.positions(ndim)
    for d, (lo, hi) in enumerate(pads):
        size = input.shape[d]
        kept = size + min(lo, 0) + min(hi, 0)
        if min(kept if mode in ("constant", "circular") else 0, size + lo + hi) < 0:
            raise ValueError(f"pad={given} takes more than the {size} in dim {d}")
        if 0 in (size, size + lo + hi) and (d in spatial or (mode != "constant" and (lo or hi))):
            raise untiled(F.pad, (input, given, mode), why=f"it leaves none of the {size} in dim {d}")
        limit = {"reflect": size - 1, "circular": kept}.get(mode)
        if limit is not None and max(lo, hi) > max(limit, 0):
            raise ValueError(f"a {mode} pad of {size} pixels is at most {limit}, got {(lo, hi)} in dim {d}")
    more = [(max(lo, 0), max(hi, 0)) for lo, hi in pads]
    if mode == "constant":
        fill = 0.0 if value is None else value
        for d in spatial:
            lo, hi = pads[d]
            if input.shape[d] + min(lo, 0) + min(hi, 0) == 0:  # all is pad: one pixel stays, and is written over
                first = (slice(None),) * d + (slice(0, 1),)
                filled = torch.masked_fill(getitem(input, first), torch.ones((), dtype=torch.bool), fill)
                assert isinstance(filled, TileTensor)
                input = filled
                pads[d] = more[d] = (lo - 1, 0) if lo > 0 else (0, hi - 1)
        return _constant(_crop(input, pads), more, fill)
    if mode == "circular":
        out = _circular(_crop(input, pads), more)
    else:  # which copy pixels even if a negative pad takes them away
        out = _crop(_mirrored(input, more, mode == "replicate"), pads)
    return TileTensor.wrap(apart(out.local, input.local), out.spec)


def _crop(input: TileTensor, pads: Sequence[Interval]) -> TileTensor:
    if all(lo >= 0 and hi >= 0 for lo, hi in pads):
        return input
    sizes = zip(pads, input.shape)
    out = getitem(input, tuple(slice(max(-lo, 0), n - max(-hi, 0)) for (lo, hi), n in sizes))
    assert isinstance(out, TileTensor)
    return out
