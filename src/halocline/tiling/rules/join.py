"""Joining and splitting tensors (cat, stack, split, chunk and their kin), flipping, turning and rolling them.

Along batch or channels all of it is local, and a part of an image stays where its pixels live. A flip moves no pixel:
the ranks change places. An image joined of several is dealt out anew, segment by segment: each moves by itself, so that
no rank fetches what lies between. So is one that wraps around (rolling, circular pads):

    segments of a circular pad by 2     |6 7|0 1 2 3 4 5 6 7|0 1|
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.boxes import Box, Cuts, Interval, intersect_interval, slices
from halocline.tiling.plain import for_tiles
from halocline.tiling.route import index, move
from halocline.tiling.rules.elementwise import align, named
from halocline.tiling.rules.gathered import on_whole
from halocline.tiling.rules.index import getitem, select
from halocline.tiling.rules.shape import from_front, ints, transpose
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import apart, in_format_of
from halocline.tiling.tensor import TileTensor, find_tiles, rule, rules, untiled

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Pixels [start, start + length) of the tensor number `source` become pixels [at, at + length) of the result."""

    source: int
    start: int
    at: int
    length: int


@lru_cache(maxsize=1024)
def _needs(out: TileSpec, axis: int, segment: Segment) -> tuple[Box, ...]:
    """By rank, what it needs of the segment, in the coordinates of the segment's tensor."""
    boxes = []
    for box in out.own:
        start, stop = intersect_interval(box[axis], (segment.at, segment.at + segment.length))
        shift = segment.start - segment.at
        boxes.append((*box[:axis], (start + shift, stop + shift), *box[axis + 1 :]))
    return tuple(boxes)


def from_segments(tensors: Sequence[Tensor], segments: Sequence[Segment], axis: int, out: TileSpec) -> TileTensor:
    """The tile of `out` whose spatial dim number `axis` is made of `segments`, in the order of their place.

    The tensors are tiles cut as `out` is in all other dims, or plain and whole.
    """
    parts = []
    for segment in segments:
        source = tensors[segment.source]
        need = _needs(out, axis, segment)
        if isinstance(source, TileTensor):
            spec = source.spec
            parts.append(move(source.local, spec.own, need, spec.exchanger, spec.dims, spec.held))
        else:
            origin = ((0, 0),) * len(out.dims)
            parts.append(for_tiles(source, out.exchanger)[index(slices(need[out.exchanger.rank], origin), out.dims)])
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, out.dims[axis])
    # A part may be empty, or one pixel wide: the memory format is that of the tensors.
    given = [t.local if isinstance(t, TileTensor) else t for t in tensors]
    return TileTensor.wrap(apart(in_format_of(whole, *given), *given), out)


# ------------------------------------------------------------------------------------------------------------- joining


@rules(named("cat concat concatenate"))
def joined(function: Any, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
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
    places = accumulate((line[-1] for line in lines), initial=0)
    segments = [Segment(i, 0, at, line[-1]) for i, (line, at) in enumerate(zip(lines, places))]
    out = lead.with_cuts((*lead.cuts[:axis], total, *lead.cuts[axis + 1 :]))
    return from_segments(tensors, segments, axis, out)


@rule(torch.stack)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    if any(t.shape != tensors[0].shape for t in tensors):
        raise ValueError(f"tensors of shapes {[tuple(t.shape) for t in tensors]} cannot be stacked; give equal ones")
    values, spec = align(tensors, torch.stack)
    place = torch.unsqueeze(TileTensor.wrap(values[0], spec), dim)
    assert isinstance(place, TileTensor)
    return TileTensor.wrap(torch.stack(values, dim), place.spec)


@rules((torch.vstack, torch.row_stack), 0, 2)
@rules((torch.hstack,), 1, 2)
@rules((torch.dstack,), 2, 3)
def joined_along(function: Any, dim: int, least: int, tensors: Sequence[Tensor]) -> Tensor:
    if any(t.ndim < least for t in tensors):
        raise untiled(function, (tensors,), why=f"tensors of fewer than {least} dims; use torch.cat")
    return joined(function, tensors, dim)


# ------------------------------------------------------------------------------------------------------------ splitting


def sliced(input: TileTensor, dim: int, start: int, stop: int) -> Tensor:
    """Pixels, channels or samples [start, stop) of a dim."""
    return getitem(input, (slice(None),) * from_front(dim, input.ndim) + (slice(start, stop),))


@rule(torch.narrow, Tensor.narrow, torch.narrow_copy, Tensor.narrow_copy)
def narrow(input: TileTensor, dim: int, start: Any, length: int) -> Tensor:
    size = input.shape[dim]
    first = int(start) + size if int(start) < 0 else int(start)
    if not (0 <= first and first + length <= size):
        raise IndexError(f"narrow to [{first}, {first + length}) leaves the {size} of dim {dim}")
    return sliced(input, dim, first, first + length)


@rule(torch.unbind, Tensor.unbind)
def unbind(input: TileTensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(select(input, dim, i) for i in range(input.shape[dim]))


rule(Tensor.__iter__)(lambda input: iter(unbind(input)))


def _slices(input: TileTensor, dim: int, bounds: Iterable[Interval]) -> tuple[Tensor, ...]:
    return tuple(sliced(input, dim, a, b) for a, b in bounds)


@rule(*named("split split_with_sizes", torch, Tensor, torch.functional))
def split(tensor: TileTensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Into parts of one size, or of the sizes listed."""
    size, sizes = tensor.shape[dim], split_size
    if not isinstance(sizes, (list, tuple)):
        sizes = int(sizes)
        sizes = [min(sizes, size - a) for a in range(0, size, sizes)]
    if sum(sizes) != size:
        raise ValueError(f"split sizes {tuple(sizes)} add up to {sum(sizes)} but dim {dim} has {size}")
    return _slices(tensor, dim, pairwise(accumulate(sizes, initial=0)))


@rule(torch.chunk, Tensor.chunk)
def chunk(input: TileTensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    if chunks < 1:
        raise ValueError(f"chunk needs 1 chunk or more, got {chunks}")
    return split(input, -(-input.shape[dim] // chunks), dim)


@rule(torch.tensor_split, Tensor.tensor_split)
def tensor_split(input: TileTensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    size, cuts = input.shape[dim], indices_or_sections
    if isinstance(cuts, Tensor):
        cuts = cuts.tolist()
    if not isinstance(cuts, (list, tuple)):
        cuts = int(cuts)
        if cuts < 1:
            raise ValueError(f"tensor_split needs 1 section or more, got {cuts}")
        parts, rest = divmod(size, cuts)
        cuts = [i * parts + min(i, rest) for i in range(1, cuts)]
    bounds = [0, *cuts, size]
    if any(a > b for a, b in pairwise(bounds)):
        raise untiled(torch.tensor_split, (input, cuts), why=f"the split points {cuts} do not rise from 0 to {size}")
    return _slices(input, dim, pairwise(bounds))


@rules(named("hsplit"), 1, 1)
@rules(named("vsplit"), 0, 2)
@rules(named("dsplit"), 2, 3)
def split_along(function: Any, dim: int, least: int, input: TileTensor, *given: Any) -> tuple[Tensor, ...]:
    cuts = given[0] if len(given) == 1 else given  # x.hsplit(1, 2) is x.hsplit((1, 2))
    dim, name = min(dim, input.ndim - 1), function.__name__  # hsplit takes one dim, too
    if input.ndim < least:
        raise ValueError(f"{name} needs {least} dims or more, got a tensor of shape {tuple(input.shape)}")
    if not isinstance(cuts, (list, tuple)) and input.shape[dim] % int(cuts):
        raise ValueError(f"{name} makes {cuts} equal parts and dim {dim} has {input.shape[dim]}: use tensor_split")
    return tensor_split(input, cuts, dim)


# ---------------------------------------------------------------------------------------- flips, quarter turns, rolls


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


rule(torch.fliplr, Tensor.fliplr)(lambda input: flip(input, 1))
rule(torch.flipud, Tensor.flipud)(lambda input: flip(input, 0))


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
