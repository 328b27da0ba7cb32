"""The way out for an operator that mixes pixels too freely for tiles: gather them, compute on the whole, cut again.

Exact, and as expensive in memory as one device. Knows no operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from halocline.tiling.plain import cut
from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.view import GatheredView, Origin
from halocline.tiling.whole_order import likeness

Ints = tuple[int, ...]


def whole(value: Any) -> Any:
    """A tile gathered, tiles in lists and tuples too; anything else as it is."""
    if isinstance(value, TileTensor):
        return value.full()
    if type(value) in (list, tuple):
        return type(value)(whole(v) for v in value)
    return value


def on_wholes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function` of the whole tensors: plain tensors, equal on every rank."""
    return function(*map(whole, args), **{name: whole(value) for name, value in kwargs.items()})


def of_wholes(*functions: Callable[..., Any]) -> None:
    """Register functions that have no other rule than that of the whole tensors."""
    for function in functions:
        rule(function)(partial(on_wholes, function))


def view_of(x: TileTensor, look: Callable[..., Tensor], *args: Any, sure: bool = True) -> Tensor:
    """`look(whole, *args)`, on one device a view of the same memory: kept at one with the tile. Not `sure` if it may
    be a copy there: then it is not to be written to."""
    local, spec = x.local, x.spec
    if spec.exchanger.size == 1 or isinstance(local, FakeTensor):
        return look(x.full(), *args)
    shown = TileTensor.wrap(local, spec)  # `x` itself may change its dims, by transpose_

    def gather() -> Tensor:
        whole = shown.full()
        if look is Tensor.view:  # ours to lay out: what must be a view on one device can be one here
            try:
                whole.view(*args)
            except RuntimeError:
                return whole.contiguous()
        return whole

    def refuse(why: str) -> Exception:
        return untiled(look, (x, *args), why=why)

    origin = Origin(local, gather, lambda whole: part_of(whole, spec), refuse)
    like = likeness(x)
    if like is None and fills_its_memory(local):
        like = torch.empty_strided(origin.whole.shape, origin.whole.stride(), dtype=local.dtype, device="meta")
    try:
        like = None if like is None else look(like, *args)
    except RuntimeError:  # a view that cannot be made on one device
        like = None
    return GatheredView.of(look(origin.whole, *args), origin, like, sure)


def fills_its_memory(tensor: Tensor) -> bool:
    """Whether a tensor is all that lies in its memory, and so no slice of another."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def on_whole(function: Callable[[Tensor], Tensor], x: TileTensor) -> TileTensor:
    """`function`, which keeps the shape, of the whole tensor; of the result only the owned pixels are kept."""
    return cut_again(function(x.full()), x.spec)


def held_part(tensor: Tensor, spec: TileSpec) -> Tensor:
    """What is held under `spec` of a tensor, tile or plain, that broadcasts against the whole tile tensor."""
    if not isinstance(tensor, TileTensor):
        return part_of(tensor, spec)
    given = tensor.spec
    if given.dims == spec.dims and given.size == spec.size and given.exchanger is spec.exchanger:
        return tensor.retiled(spec).local
    return part_of(tensor.full(), spec)


def cut_within(x: TileTensor, dim: int) -> bool:
    """Whether a dim is spatial and lies on more than one tile, so that no rank holds all of it."""
    dim = dim - x.ndim if dim >= 0 else dim
    return any(d == dim and n > 1 for d, n in zip(x.spec.dims, x.spec.grid))


@lru_cache(maxsize=4096)
def resized(spec: TileSpec, size: Ints) -> TileSpec:
    """The tiles of an image of another size, cut at the same fractions. Only an uncut dim may change under a margin."""
    return spec if size == spec.size else spec.mapped(lambda d, c: c * size[d] // spec.size[d])


def cut_again(plain: Tensor, spec: TileSpec) -> TileTensor:
    """The tile of a whole tensor whose pixels are dealt out as those of `spec` are, in proportion to their number."""
    spec = resized(spec.without_margin(), tuple(plain.shape[d] for d in spec.dims))
    return TileTensor.wrap(cut(plain, spec), spec)


def each(function: Callable[[Tensor], Any], results: Any) -> Any:
    """`function` of the one tensor that an operator returned, or of each in its (named) tuple or list."""
    return function(results) if isinstance(results, Tensor) else type(results)([function(r) for r in results])


def wrapped(results: Any, spec: TileSpec) -> Any:
    """The tiles of one spec of what an operator returned."""
    return each(lambda out: TileTensor.wrap(out, spec), results)
