"""Indexing and slicing, to read and to write: of batch and channels freely, of pixels by slices with known bounds.

A slice of pixels stays where its pixels live: nothing moves. A single row or pixel, which has no dim to be cut in any
more, is gathered. Pixels chosen by a tensor are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.boxes import Box, Interval
from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.rules.key import items_of
from halocline.tiling.rules.shape import from_front
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, UntiledOperation, find_tiles, rule, untiled

Pick = tuple[int, int, int]
"""Of one spatial dim the pixels start, start + step, ...: (start, step, count)."""


def _first(pixel: int, pick: Pick) -> int:
    """The first picked one at or after a pixel, as a place in the result."""
    start, step, count = pick
    return min(max(-(-(pixel - start) // step), 0), count)


@lru_cache(maxsize=4096)
def picked(spec: TileSpec, picks: tuple[Pick, ...]) -> tuple[TileSpec, tuple[slice, ...]]:
    """The tiles of the pixels picked, and where they lie in what this rank holds."""
    cuts = tuple(tuple(_first(c, pick) for c in line) for line, pick in zip(spec.cuts, picks))
    new = spec.with_cuts(cuts)

    def inside(box: Box) -> Box:
        return tuple((_first(a, pick), _first(b, pick)) for (a, b), pick in zip(box, picks))

    if not spec.bare:
        # All that is held, even by a rank that owns none of the pixels picked: what is written to them must reach it.
        new = new.with_have(tuple(inside(h) for h in spec.have))
    where = []
    for (origin, _), (first, last), (start, step, _) in zip(spec.held, new.held, picks):
        if first >= last:
            where.append(slice(0, 0))
        else:
            where.append(slice(start + first * step - origin, start + (last - 1) * step - origin + 1, step))
    return new, tuple(where)


@dataclass(frozen=True)
class Read:
    """An index, sorted out: what this rank takes of what it holds, and what the result is."""

    items: tuple[Any, ...]
    """The local index."""
    spec: TileSpec
    """The tiles of the result while the dims in `single` are still there."""
    single: tuple[int, ...]
    """The dims (negative) in which a single pixel was asked for."""
    ndim: int


Plain = tuple[int | tuple[Any, ...] | str | None, ...]
"""An index of numbers, None, ... and slices (as tuples), which can be looked up."""


def read(input: TileTensor, key: Any, function: Any) -> Read:
    """Sort out an index; one without tensors is sorted out once."""
    plain: list[Any] = []
    for item in key if type(key) is tuple else (key,):
        kind = type(item)
        if kind is slice:
            bounds = (item.start, item.stop, item.step)
            if any(isinstance(b, Tensor) for b in bounds):  # its value may change
                return _read(input, key, function)
            plain.append(bounds)
        elif kind is int or item is None:
            plain.append(item)
        elif item is Ellipsis:
            plain.append("...")
        else:
            return _read(input, key, function)
    return _read_plain(input.spec, input.ndim, tuple(plain)) or _read(input, key, function)


@lru_cache(maxsize=4096)
def _read_plain(spec: TileSpec, ndim: int, plain: Plain) -> Read | None:
    """None for an index that must be refused, which needs the tensor to say why."""
    key = tuple(slice(*i) if isinstance(i, tuple) else Ellipsis if i == "..." else i for i in plain)
    stand_in = TileTensor.wrap(torch.empty(spec.local_shape((1,) * ndim), device="meta"), spec)
    try:
        return _read(stand_in, key, Tensor.__getitem__)
    except (UntiledOperation, ValueError, IndexError):
        return None


def _read(input: TileTensor, key: Any, function: Any) -> Read:
    if find_tiles([key]):
        raise untiled(function, (input, key), why="a tile used as an index chooses pixels by their values")
    items = items_of(key)
    ndim = input.ndim
    taken = sum(_width(i) for i in items)
    gaps = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(gaps) > 1 or taken > ndim:
        raise IndexError(f"the index {key!r} has {taken} dims but the tensor {tuple(input.shape)} has {ndim}")
    fill = [slice(None)] * (ndim - taken)
    items = items + fill if not gaps else [*items[: gaps[0]], *fill, *items[gaps[0] + 1 :]]

    spec, sizes = input.spec, input.shape
    spatial = spec.positions(ndim)
    picks: list[Pick] = []
    places: list[int] = []
    single: list[int] = []
    dim = 0
    for n, item in enumerate(items):
        covered = range(dim, dim + _width(item))
        dim += _width(item)
        if not any(d in spatial for d in covered):
            if isinstance(item, Tensor) and places:
                raise untiled(function, (input, key), why="a tensor as index after a cut dim; permute or index_select")
            continue
        if isinstance(item, int):
            size = sizes[covered[0]]
            if not -size <= item < size:
                raise IndexError(f"pixel {item} is out of range for {size} pixels in dim {covered[0]}")
            picks.append((item % size, 1, 1))
            single.append(n)
        elif isinstance(item, slice):
            start, stop, step = item.indices(sizes[covered[0]])
            if step < 1:
                raise ValueError(f"a slice needs a step of 1 or more, got {step}; use flip")
            picks.append((start, step, max(0, -(-(stop - start) // step))))
        else:
            raise untiled(function, (input, key), why="pixels can be chosen by slices only")
        places.append(n)
    if any(count == 0 for _, _, count in picks):
        raise untiled(function, (input, key), why="an index that leaves no pixels has no rule")
    new, where = picked(spec, tuple(picks))
    for n, part in zip(places, where):
        items[n] = part
    # Dims behind a cut dim come from slices, None and numbers only, so its place from the end is known.
    after = [sum(1 for later in items[n + 1 :] if not isinstance(later, int)) for n in places]
    new = new.with_dims(tuple(-1 - a for a in after))
    alone = tuple(-1 - sum(1 for later in items[n + 1 :] if not isinstance(later, int)) for n in single)
    return Read(tuple(items), new, alone, ndim)


def _width(item: Any) -> int:
    """How many dims of the tensor an item of an index takes."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1


@rule(Tensor.__getitem__)
def getitem(input: Tensor, key: Any) -> Tensor:
    if not isinstance(input, TileTensor):
        return _looked_up(input, key)
    taken = read(input, key, Tensor.__getitem__)
    out = TileTensor.wrap(input.local[taken.items], taken.spec)
    return out.full().squeeze(taken.single) if taken.single else out


def _looked_up(table: Tensor, key: Any) -> TileTensor:
    """Of a plain table the rows that each pixel names, as `weights[classes]` does."""
    if not isinstance(key, TileTensor) or key.dtype in (torch.bool, torch.uint8):
        raise untiled(Tensor.__getitem__, (table, key), why="a tile used as an index chooses by its values")
    spec = key.spec.with_dims(tuple(d - (table.ndim - 1) for d in key.spec.dims))
    return TileTensor.wrap(table[key.local], spec)


@rule(Tensor.__setitem__)
def setitem(input: Tensor, key: Any, value: Any) -> None:
    if not isinstance(input, TileTensor):
        raise untiled(Tensor.__setitem__, (input, key, value), why="a tile cannot be written into a plain tensor")
    taken = read(input, key, Tensor.__setitem__)
    if taken.single and isinstance(value, Tensor) and value.ndim:
        raise untiled(Tensor.__setitem__, (input, key, value), why="write a slice of one pixel in place of a number")
    if isinstance(value, TileTensor):
        if value.spec.dims != taken.spec.dims or value.spec.exchanger is not taken.spec.exchanger:
            raise untiled(Tensor.__setitem__, (input, key, value), why="the tiles differ in which dims are cut")
        if value.spec.size == taken.spec.size:
            value = value.retiled(taken.spec).local
        else:
            value = part_of(value.full(), taken.spec)
    elif isinstance(value, Tensor):
        value = part_of(value, taken.spec)
    input.local[taken.items] = value


# ----------------------------------------------------------------------------------------------- the same by functions


def sliced(input: TileTensor, dim: int, start: int, stop: int) -> TileTensor:
    """Pixels, channels or samples [start, stop) of a dim."""
    key = (slice(None),) * from_front(dim, input.ndim) + (slice(start, stop),)
    out = getitem(input, key)
    assert isinstance(out, TileTensor)
    return out


@rule(torch.narrow, Tensor.narrow, torch.narrow_copy, Tensor.narrow_copy)
def narrow(input: TileTensor, dim: int, start: Any, length: int) -> TileTensor:
    size = input.shape[dim]
    first = int(start) + size if int(start) < 0 else int(start)
    if not (0 <= first and first + length <= size):
        raise IndexError(f"narrow to [{first}, {first + length}) leaves the {size} of dim {dim}")
    return sliced(input, dim, first, first + length)


@rule(torch.select, Tensor.select)
def select(input: TileTensor, dim: int, index: int) -> Tensor:
    return getitem(input, (slice(None),) * from_front(dim, input.ndim) + (int(index),))


@rule(torch.index_select, Tensor.index_select)
def index_select(input: Tensor, dim: int, index: Tensor) -> TileTensor:
    if not isinstance(input, TileTensor) or isinstance(index, TileTensor):
        raise untiled(torch.index_select, (input, dim, index), why="a tile used as an index chooses by its values")
    if from_front(dim, input.ndim) in input.spec.positions(input.ndim):
        raise untiled(torch.index_select, (input, dim, index), why="pixels can be chosen by slices only")
    return TileTensor.wrap(input.local.index_select(dim, index), input.spec)


@rule(torch.unbind, Tensor.unbind)
def unbind(input: TileTensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(select(input, dim, i) for i in range(input.shape[dim]))


@rule(Tensor.__iter__)
def iterate(input: TileTensor) -> Any:
    return iter(unbind(input))


def _pieces(input: TileTensor, dim: int, bounds: Sequence[Interval]) -> tuple[Tensor, ...]:
    return tuple(sliced(input, dim, a, b) for a, b in bounds)


def _split(function: Callable[..., Any]) -> None:
    @rule(function)
    def split(tensor: TileTensor, split_size: Any = None, dim: int = 0, **kwargs: Any) -> tuple[Tensor, ...]:
        sizes = next(iter(kwargs.values())) if split_size is None else split_size
        size = tensor.shape[dim]
        if not isinstance(sizes, (list, tuple)):
            sizes = int(sizes)
            sizes = [min(sizes, size - a) for a in range(0, size, sizes)]
        if sum(sizes) != size:
            raise ValueError(f"split sizes {tuple(sizes)} add up to {sum(sizes)} but dim {dim} has {size}")
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return _pieces(tensor, dim, [(b - n, b) for b, n in zip(ends, sizes)])


for _function in (torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes, torch.functional.split):
    _split(_function)


@rule(torch.chunk, Tensor.chunk)
def chunk(input: TileTensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    size = input.shape[dim]
    step = -(-size // chunks)
    return _pieces(input, dim, [(a, min(a + step, size)) for a in range(0, size, step)])


@rule(torch.tensor_split, Tensor.tensor_split)
def tensor_split(input: TileTensor, indices_or_sections: Any, dim: int = 0, **kwargs: Any) -> tuple[Tensor, ...]:
    size, cuts = input.shape[dim], indices_or_sections
    if isinstance(cuts, Tensor):
        cuts = cuts.tolist()
    if not isinstance(cuts, (list, tuple)):
        cuts = int(cuts)
        parts, rest = divmod(size, cuts)
        cuts = [i * parts + min(i, rest) for i in range(1, cuts)]
    bounds = [0, *cuts, size]
    if any(a > b for a, b in pairwise(bounds)):
        raise untiled(torch.tensor_split, (input, cuts), why=f"the split points {cuts} do not rise from 0 to {size}")
    return _pieces(input, dim, list(pairwise(bounds)))


def _gather(function: Callable[..., Any]) -> None:
    @rule(function)
    def gather(input: Tensor, first: Any, second: Any = None, **kwargs: Any) -> TileTensor:
        """Values of one dim chosen per pixel: local while that dim is not cut and both are cut alike."""
        dim, index = (first, second) if isinstance(first, int) else (second, first)
        dim, index = kwargs.get("dim", dim), kwargs.get("index", kwargs.get("indices", index))
        if not (isinstance(input, TileTensor) and isinstance(index, TileTensor) and isinstance(dim, int)):
            raise untiled(function, (input, index), why="input and index must both be tiles")
        if from_front(dim, input.ndim) in input.spec.positions(input.ndim) or input.ndim != index.ndim:
            raise untiled(function, (input, index), why="pixels can be chosen by slices only")
        if input.spec.size != index.spec.size or input.spec.dims != index.spec.dims:
            raise untiled(function, (input, index), why="input and index are of different sizes")
        index = index.retiled(input.spec)
        return TileTensor.wrap(torch.gather(input.local, dim, index.local), input.spec)


for _chooser in (torch.gather, Tensor.gather, torch.take_along_dim, Tensor.take_along_dim):
    _gather(_chooser)
