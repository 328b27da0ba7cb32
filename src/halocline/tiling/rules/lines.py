"""Operators along whole lines of pixels, each line by itself: sorting, running values, differences.

The tensor is cut anew, across the longest of the other dims (channels, samples or the image's other dim), so that each
rank holds whole lines; it computes on them and the result is cut as the tensor was. Two exchanges, in which each pixel
travels once, and no rank ever holds more than its share.

    lines run down the image, 2 ranks       A A B B         A A A A         A A B B
                                            A A B B    ->   A A A A    ->   A A B B      (turned by 90 degrees where
                                            A A B B         B B B B         A A B B       the lines run across)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.elementwise import named
from halocline.tiling.rules.gathered import cut_again, cut_within, each, of_wholes, resized, wrapped
from halocline.tiling.rules.shape import from_front
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import laid_out, memory_order, noted, strides_in
from halocline.tiling.tensor import TileTensor, rule, rules, untiled

Ints = tuple[int, ...]


@lru_cache(maxsize=1024)
def _turned(spec: TileSpec, other: int, size: int) -> tuple[TileSpec, TileSpec]:
    """The same bare tiles with the dim `other`, of `size`, among the spatial ones; and tiles cut in that dim alone."""
    lines = {**dict(zip(spec.dims, spec.cuts)), other: (0, size)}
    if other in spec.dims:
        lines[other] = spec.cuts[spec.dims.index(other)]
    dims = tuple(sorted(lines))
    ranks = spec.exchanger.size
    fair = tuple(size * i // ranks for i in range(ranks + 1))
    across = tuple(fair if d == other else (0, lines[d][-1]) for d in dims)
    return (
        TileSpec(tuple(lines[d] for d in dims), spec.exchanger, dims, spec.ranks),
        TileSpec(across, spec.exchanger, dims, tuple(range(ranks))),
    )


def _computed(function: Callable[[Tensor], Any], local: Tensor) -> Any:
    """`function` of what this rank holds; of nothing it gives nothing of the right shape, connected to its input."""
    if local.numel():
        return function(local)
    shape = [n or 2 for n in local.shape]
    wide = torch.empty_strided(shape, strides_in(memory_order(local), tuple(shape)), dtype=local.dtype, device="meta")

    def nothing(like: Tensor) -> Tensor:
        sizes = [m if n else 0 for n, m in zip(local.shape, like.shape)]
        none = torch.zeros(sizes, dtype=like.dtype, device=local.device)
        if local.requires_grad and (like.is_floating_point() or like.is_complex()):
            tie = local.sum() * 0
            none = none + (tie.real if tie.is_complex() and not like.is_complex() else tie).to(like.dtype)
        order = memory_order(like)
        return noted(laid_out(none, strides_in(order, tuple(sizes))), order)

    return each(nothing, function(wide))


def on_lines(function: Callable[[Tensor], Any], x: TileTensor, dims: Iterable[int]) -> Any:
    """`function` of a tensor, in whose results only the sizes of `dims` may change, and which treats every place in the
    other dims by itself. Its result, or each of its results, is a tile."""
    ndim = x.ndim
    along = {from_front(d, ndim) - ndim for d in dims}
    if not any(cut_within(x, d) for d in along):
        return each(lambda out: _placed(out, x.spec, along), _computed(function, x.local))
    free = [d for d in range(-ndim, 0) if d not in along]
    if not free:
        return each(lambda out: cut_again(out, x.spec), function(x.full()))
    other = max(free, key=lambda d: x.shape[d])
    bare = x.cropped(x.spec.without_margin())
    before, lines = _turned(bare.spec, other, x.shape[other])
    held = TileTensor.wrap(bare.local, before).retiled(lines)

    def back(out: Tensor) -> TileTensor:
        size = tuple(n if d == other else out.shape[d] for d, n in zip(lines.dims, lines.size))
        tile = TileTensor.wrap(out, resized(lines, size)).retiled(resized(before, size))
        spec = resized(bare.spec, tuple(size[lines.dims.index(d)] for d in bare.spec.dims))
        # A rank that is on no tile now holds nothing in the dim `other`, either; it holds all of nothing there.
        shape = list(out.shape)
        shape[other] = x.shape[other]
        order, local = memory_order(tile.local), tile.local.reshape(spec.local_shape(tuple(shape)))
        return TileTensor.wrap(noted(local, order), spec)

    return each(back, _computed(function, held.local))


def _placed(out: Tensor, spec: TileSpec, along: set[int]) -> TileTensor:
    """A result computed where its lines are whole."""
    sizes = (out.shape[d] if d in along else n for d, n in zip(spec.dims, spec.size))
    return TileTensor.wrap(out, resized(spec, tuple(sizes)))


# ------------------------------------------------------------------------------------------------ sorting and counting


@rules(named("sort argsort"))
def sort(
    function: Callable[..., Any], input: TileTensor, dim: Any = -1, descending: bool = False, **kwargs: Any
) -> Any:
    if isinstance(dim, bool):  # sort(x, stable) has no positional form of its own
        raise untiled(function, (input, dim), kwargs, why="give dim= and descending= by name")
    return on_lines(lambda line: function(line, dim=dim, descending=descending, **kwargs), input, (dim,))


rule(*named("msort"))(lambda input: on_lines(torch.msort, input, (0,)))


@rule(torch.topk, Tensor.topk)
def topk(input: TileTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Those of a line of pixels have no place in the image any more, and are plain."""
    if from_front(dim, input.ndim) in input.spec.positions(input.ndim):
        return torch.topk(input.full(), k, dim, largest, sorted)
    return wrapped(torch.topk(input.local, k, dim, largest, sorted), input.spec)


@rule(torch.bucketize)
def bucketize(input: Tensor, boundaries: Tensor, **kwargs: Any) -> TileTensor:
    if not isinstance(input, TileTensor) or isinstance(boundaries, TileTensor):
        raise untiled(torch.bucketize, (input, boundaries), why="its boundaries must be plain")
    return TileTensor.wrap(torch.bucketize(input.local, boundaries, **kwargs), input.spec)


@rule(torch.searchsorted)
def searchsorted(sorted_sequence: Tensor, input: Any, **kwargs: Any) -> TileTensor:
    if not isinstance(input, TileTensor) or isinstance(sorted_sequence, TileTensor) or sorted_sequence.ndim != 1:
        raise untiled(torch.searchsorted, (sorted_sequence, input), why="its sequence must be plain and have one dim")
    return TileTensor.wrap(torch.searchsorted(sorted_sequence, input.local, **kwargs), input.spec)


@rule(torch.histc, Tensor.histc)
def histc(input: TileTensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    """Each rank counts the pixels it owns; the bins' ends, if they are not given, are the whole image's extremes."""
    values = input.detach()
    assert isinstance(values, TileTensor)
    if min == max:
        min, max = torch.amin(values).item(), torch.amax(values).item()
        if min == max:
            min, max = min - 1, max + 1
    owned = values.owned
    counts = torch.histc(owned, bins, min, max) if owned.numel() else owned.new_zeros(bins)
    return input.spec.exchanger.all_reduce(counts)


of_wholes(*named("bincount histogram"))


# ------------------------------------------------------------------------------------------------------ running values


@rules(named("cumsum cumprod logcumsumexp cummax cummin"))
def running(function: Callable[..., Any], input: TileTensor, dim: Any = None, **kwargs: Any) -> Any:
    return on_lines(lambda whole: function(whole, dim, **kwargs), input, (dim,))


@rules((Tensor.cumsum_, Tensor.cumprod_))
def write(function: Callable[..., Any], input: TileTensor, dim: int, **kwargs: Any) -> Tensor:
    # Of a copy: the backward needs the values before they are overwritten.
    found = getattr(torch, function.__name__.removesuffix("_"))
    return input.copy_(found(input.clone(), dim, **kwargs))


# ----------------------------------------------------------------------- differences and integrals: pixels move by one


def _neighbours(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """All but the first, and all but the last, of a dim."""
    size = x.shape[dim]
    return torch.narrow(x, dim, 1, size - 1), torch.narrow(x, dim, 0, size - 1)


@rule(torch.diff, Tensor.diff)
def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    if n == 0:  # of which torch does not look at the rest
        return input.clone()
    parts = [t for t in (prepend, input, append) if t is not None]
    whole = torch.cat(parts, dim) if len(parts) > 1 else input
    if not 0 < n < whole.shape[dim]:
        raise untiled(torch.diff, (input, n, dim), why=f"{n} differences of {whole.shape[dim]} values have no rule")
    for _ in range(n):
        later, earlier = _neighbours(whole, dim)
        whole = torch.logical_xor(later, earlier) if whole.dtype is torch.bool else later - earlier
    return whole


@rule(torch.gradient)
def gradient(input: TileTensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> list[Tensor]:
    """One estimate per dim; `spacing` is a number, or per dim a number or the coordinates of its values."""
    dims = tuple(range(input.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    steps: Sequence[Any] = spacing if isinstance(spacing, (tuple, list)) else (spacing,) * len(dims)
    if (isinstance(spacing, Tensor) and len(dims) > 1) or len(steps) != len(dims) or any(map(_unfit, steps)):
        raise untiled(torch.gradient, (input, spacing, dim), why="give a plain spacing without a gradient per dim")

    def along(d: int, step: Any) -> Tensor:
        def estimate(whole: Tensor) -> Tensor:
            given = {} if step is None else {"spacing": [step.to(whole.device)] if isinstance(step, Tensor) else step}
            return torch.gradient(whole, dim=d, edge_order=edge_order, **given)[0]

        return on_lines(estimate, input, (d,))

    return [along(d, step) for d, step in zip(dims, steps)]


def _unfit(step: Any) -> bool:
    return isinstance(step, Tensor) and (isinstance(step, TileTensor) or step.requires_grad)


def _trapezoids(y: Tensor, x: Tensor | None, dx: Any, dim: int) -> Tensor:
    """The area under each piece of the line between two neighbours."""
    later, earlier = _neighbours(y, dim)
    if x is None:
        step = 1 if dx is None else dx.item() if isinstance(dx, Tensor) else dx
        return (later + earlier) * step / 2
    if x.ndim == 1 and not isinstance(x, TileTensor):
        x = x.view(-1, *(1,) * (y.ndim - 1 - from_front(dim, y.ndim)))
        return (later + earlier) * torch.diff(x, dim=0) / 2
    return (later + earlier) * torch.diff(x, dim=dim) / 2


@rules((torch.trapezoid, torch.trapz), torch.sum)
@rules((torch.cumulative_trapezoid,), torch.cumsum)
def trapezoid(
    function: Any, add: Callable[..., Tensor], y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1
) -> Tensor:
    return add(_trapezoids(y, x, dx, dim), dim)
