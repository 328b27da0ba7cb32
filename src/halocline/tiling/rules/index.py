"""Indexing and slicing, to read and to write.

A slice of pixels stays where its pixels live: nothing moves. A single row or pixel, which has no dim to be cut in any
more, is gathered. Pixels chosen by an index or mask that is a tensor are chosen from the whole image: read, they are a
plain tensor; written, each rank keeps its part of what the whole becomes. One value under a mask needs no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.plain import for_tiles
from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.rules.gathered import held_part, on_wholes, view_of, whole
from halocline.tiling.rules.shape import at, from_front
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import ask_of_expanded, is_alias_of, is_expanded
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
    # All that is held, even by a rank that owns none of the pixels picked: what is written to them must reach it.
    new = spec.mapped(lambda d, c: _first(c, picks[d]))
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


Plain = tuple[int | tuple[Any, ...] | str | None, ...]
"""An index of numbers, None, ... and slices (as tuples), which can be looked up."""


def read(input: TileTensor, key: Any, function: Any) -> Read | None:
    """Sort out an index; one without tensors is sorted out once. None if it chooses pixels otherwise than by slices."""
    plain: list[Any] = []
    for item in key if type(key) is tuple else (key,):
        kind = type(item)
        if kind is slice:
            bounds = (item.start, item.stop, item.step)
            if any(isinstance(b, Tensor) for b in bounds):  # its value may change
                break
            plain.append(bounds)
        elif kind is int or item is None:
            plain.append(item)
        elif item is Ellipsis:
            plain.append("...")
        else:
            break
    else:
        return _read_plain(input.spec, input.ndim, tuple(plain)) or _read(input, key, function)
    return None if find_tiles((key,)) else _read(input, key, function)


@lru_cache(maxsize=4096)
def _read_plain(spec: TileSpec, ndim: int, plain: Plain) -> Read | None:
    """None for an index that leaves no pixels, or that must be refused, which needs the tensor to say why."""
    key = tuple(slice(*i) if isinstance(i, tuple) else Ellipsis if i == "..." else i for i in plain)
    stand_in = TileTensor.wrap(torch.empty(spec.local_shape((1,) * ndim), device="meta"), spec)
    try:
        return _read(stand_in, key, Tensor.__getitem__)
    except (UntiledOperation, ValueError, IndexError):
        return None


def _read(input: TileTensor, key: Any, function: Any) -> Read | None:
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
            return None
        places.append(n)
    if any(count == 0 for _, _, count in picks) or (single and any(isinstance(i, Tensor) for i in items)):
        return None
    new, where = picked(spec, tuple(picks))
    for n, part in zip(places, where):
        items[n] = part
    order = _order(items)
    new = new.with_dims(tuple(order.index(n) - len(order) for n in places))
    return Read(tuple(items), new, tuple(order.index(n) - len(order) for n in single))


def _order(items: Sequence[Any]) -> list[int]:
    """The result's dims, by the item of the index (without numbers for cut dims) that each one comes from.

    Tensors give their dims, broadcast, in place of the first of them; at the front if other dims lie between them.
    """
    kept = [n for n, item in enumerate(items) if not isinstance(item, int)]
    chosen = [i for i, n in enumerate(kept) if isinstance(items[n], Tensor)]
    if not chosen:
        return kept
    # A mask lists its values in one dim.
    ndim = max(1 if _is_mask(items[kept[i]]) else items[kept[i]].ndim for i in chosen)
    together = chosen == list(range(chosen[0], chosen[-1] + 1))
    others = [n for i, n in enumerate(kept) if i not in chosen]
    first = chosen[0] if together else 0
    return [*others[:first], *[kept[chosen[0]]] * ndim, *others[first:]]


def _is_mask(item: Any) -> bool:
    return isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8)


def _width(item: Any) -> int:
    """How many dims of the tensor an item of an index takes."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if _is_mask(item) else 1


@rule(Tensor.__getitem__)
def getitem(input: Tensor, key: Any) -> Tensor:
    if not isinstance(input, TileTensor):
        return _looked_up(input, key)
    taken = read(input, key, Tensor.__getitem__)
    if taken is None:
        return view_of(input, Tensor.__getitem__, whole(key))
    out = TileTensor.wrap(input.local[taken.items], taken.spec)
    if out.shape != input.shape and is_alias_of(out.local, input.local):
        out.seen_by = (_with_dims, input, (key, taken.single), {})
    return view_of(out, Tensor.squeeze, taken.single) if taken.single else out


def _with_dims(whole: Tensor, key: Any, single: tuple[int, ...]) -> Tensor:
    """`whole[key]`, with dims of size 1 for the `single` pixels."""
    out = whole[key]
    ndim = out.ndim + len(single)
    for dim in sorted(single):
        out = out.unsqueeze(dim + ndim)
    return out


def _looked_up(table: Tensor, key: Any) -> Tensor:
    """Of a plain table the rows that each pixel names, as `weights[classes]` and `colours[red, green, blue]` do."""
    items = list(key) if isinstance(key, tuple) else [key]
    tiles = find_tiles(items)
    spec = tiles[0].spec
    tensors = [i for i in items if not (i is None or i is Ellipsis or type(i) in (int, slice))]
    if len(tensors) != len(tiles) or any(_is_mask(t) or t.ndim != tiles[0].ndim for t in tiles):
        return table[whole(key)]
    if any(t.spec.dims != spec.dims or t.spec.size != spec.size for t in tiles):
        return table[whole(key)]
    items = [held_part(i, spec) if isinstance(i, TileTensor) else i for i in items]
    out = for_tiles(table, spec.exchanger)[tuple(items)]
    gaps = [n for n, i in enumerate(items) if i is Ellipsis] or [len(items)]
    rest = [slice(None)] * (table.ndim - sum(_width(i) for i in items))
    items = [*items[: gaps[0]], *rest, *items[gaps[0] + 1 :]]
    first = _order(items).index(next(n for n, i in enumerate(items) if isinstance(i, Tensor)))
    return TileTensor.wrap(out, at(spec, [first + p for p in spec.positions(tiles[0].ndim)], out.ndim))


@rule(Tensor.__setitem__)
def setitem(input: Tensor, key: Any, value: Any) -> None:
    if not isinstance(input, TileTensor):
        input[whole(key)] = whole(value)
        return
    if _marked(input, key, value):
        return
    taken = read(input, key, Tensor.__setitem__)
    if taken is None:
        written = input.full().clone()
        written[whole(key)] = whole(value)
        input.local.copy_(part_of(written, input.spec))
        return
    if isinstance(value, Tensor):
        for dim in sorted(taken.single, reverse=True):  # the value has no dim for a single pixel
            value = value.unsqueeze(dim) if value.ndim >= -1 - dim else value
        value = held_part(value, taken.spec)
    if is_expanded(input.local) and 0 not in taken.spec.size:
        ask_of_expanded(lambda t: t.copy_(t.new_ones(())), input.local[taken.items])
    input.local[taken.items] = value


def _marked(input: TileTensor, key: Any, value: Any) -> bool:
    """Write one value to the pixels that a mask marks, if that is what is asked: each rank does so on its own."""
    mask = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if not _is_mask(mask) or tuple(mask.shape) != tuple(input.shape[: mask.ndim]) or isinstance(value, TileTensor):
        return False
    if isinstance(value, Tensor):
        if value.numel() != 1:
            return False
        value = for_tiles(value, input.spec.exchanger)
    for _ in range(input.ndim - mask.ndim):
        mask = mask.unsqueeze(-1)
    input.local[held_part(mask, input.spec).bool().expand(input.local.shape)] = value
    return True


@rule(torch.select, Tensor.select)
def select(input: TileTensor, dim: int, index: int) -> Tensor:
    return getitem(input, (slice(None),) * from_front(dim, input.ndim) + (int(index),))


@rule(torch.index_select, Tensor.index_select)
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    if not isinstance(input, TileTensor) or from_front(dim, input.ndim) in input.spec.positions(input.ndim):
        return on_wholes(torch.index_select, input, dim, index)
    return TileTensor.wrap(input.local.index_select(dim, whole(index)), input.spec)


# ------------------------------------------------------------------------------- what torch reads an index as


def items_of(key: Any) -> list[Any]:
    """The items of an index: numbers, slices, None, ... and tensors; those without dims are masks of one value."""
    return [_item(i) for i in (key if _is_tuple(key) else (key,))]


def _is_tuple(key: Any) -> bool:
    """Whether a sequence is read as a tuple: a tuple is, and a short list that holds more than numbers.

    So does torch still, with a warning (treatSequenceAsTuple), as numpy once did.
    """
    if isinstance(key, tuple):
        return True
    if not isinstance(key, Sequence) or isinstance(key, str) or len(key) >= 32:
        return False
    return any(i is None or i is Ellipsis or isinstance(i, (slice, Tensor)) or _is_sequence(i) for i in key)


def _is_sequence(item: Any) -> bool:
    return isinstance(item, Sequence) or (hasattr(item, "__array__") and hasattr(item, "__setitem__"))


def _item(item: Any) -> Any:
    if isinstance(item, bool):
        return torch.tensor(item)
    if item is None or item is Ellipsis or isinstance(item, (int, slice)):
        return item
    if isinstance(item, Sequence) and not isinstance(item, str):
        item = torch.tensor(item)
        item = item if item.numel() else item.long()  # an empty list has no dtype of its own
    elif not isinstance(item, Tensor) and hasattr(item, "__array__"):  # of numpy
        item = torch.as_tensor(item)
    if isinstance(item, Tensor) and item.ndim == 0 and item.dtype not in (torch.bool, torch.uint8):
        return int(item)
    return item
