"""Flips, rolls and quarter turns. A flip moves no pixel: the ranks change places. A roll wraps around the image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.gathered import on_whole
from halocline.tiling.rules.join import Segment, from_segments
from halocline.tiling.rules.shape import from_front, ints, transpose
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, rule

Ints = tuple[int, ...]


@lru_cache(maxsize=1024)
def flipped(spec: TileSpec, axes: Ints) -> TileSpec:
    """The same ranks holding the same pixels of the flipped image."""
    cuts = tuple(tuple(line[-1] - c for c in reversed(line)) if i in axes else line for i, line in enumerate(spec.cuts))

    def mirrored(place: Ints) -> Ints:
        return tuple(n - 1 - p if i in axes else p for i, (p, n) in enumerate(zip(place, spec.grid)))

    new = spec.with_cuts(cuts, spec.permuted_ranks(mirrored, spec.grid))
    if spec.bare:
        return new
    have = [
        tuple((n - b, n - a) if i in axes else (a, b) for i, ((a, b), n) in enumerate(zip(box, spec.size)))
        for box in spec.have
    ]
    return new.with_have(tuple(have))


@rule(torch.flip, Tensor.flip)
def flip(input: TileTensor, *dims: Any) -> TileTensor:
    named = tuple(from_front(d, input.ndim) for d in ints(dims))
    spatial = input.spec.positions(input.ndim)
    axes = tuple(spatial.index(d) for d in named if d in spatial)
    return TileTensor.wrap(input.local.flip(named), flipped(input.spec, axes) if axes else input.spec)


@rule(torch.fliplr, Tensor.fliplr)
def fliplr(input: TileTensor) -> TileTensor:
    return flip(input, 1)


@rule(torch.flipud, Tensor.flipud)
def flipud(input: TileTensor) -> TileTensor:
    return flip(input, 0)


@rule(torch.rot90, Tensor.rot90)
def rot90(input: TileTensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> TileTensor:
    first, second = (from_front(d, input.ndim) for d in dims)
    if first == second:
        raise ValueError(f"a turn needs two different dims, got {tuple(dims)}")
    if k % 4 == 0:
        return TileTensor.wrap(input.local.clone(), input.spec)
    if k % 4 == 2:
        return flip(input, first, second)
    order = (second, first) if k % 4 == 1 else (first, second)
    # A quarter turn to the left is a transpose of the image flipped along its second dim.
    return transpose(flip(input, order[0]), first, second)


@rule(torch.roll, Tensor.roll)
def roll(input: TileTensor, shifts: Any, dims: Any = None) -> TileTensor:
    steps, named = ints((shifts,)), () if dims is None else ints((dims,))
    if not named and len(steps) == 1:  # as one line
        return on_whole(lambda whole: whole.roll(steps[0]), input)
    if len(steps) != len(named):
        raise ValueError(f"roll wants one dim per shift: shifts={shifts}, dims={dims}")
    rolled = input
    for shift, dim in zip(steps, named):
        dim = from_front(dim, input.ndim)
        spatial = rolled.spec.positions(input.ndim)
        if dim not in spatial:
            rolled = TileTensor.wrap(rolled.local.roll(shift, dim), rolled.spec)
            continue
        axis = spatial.index(dim)
        size = rolled.spec.size[axis]
        shift %= size
        if shift:
            segments = [Segment(0, size - shift, 0, shift), Segment(0, 0, shift, size - shift)]
            rolled = from_segments([rolled], segments, axis, rolled.spec.without_margin())
        else:  # torch copies it, whatever its memory format
            rolled = TileTensor.wrap(rolled.local.clone(memory_format=torch.contiguous_format), rolled.spec)
    return rolled
