"""Operators along whole lines of pixels (transforms, running sums, sorting), each line by itself.

The tensor is cut anew, across the longest of the other dims (channels, samples or the image's other dim), so that each
rank holds whole lines; it computes on them and the result is cut as the tensor was. Two exchanges, in which each pixel
travels once, and no rank ever holds more than its share. Knows no operator.

    lines run down the image, 2 ranks       A A B B         A A A A         A A B B
                                            A A B B    ->   A A A A    ->   A A B B      (turned by 90 degrees where
                                            A A B B         B B B B         A A B B       the lines run across)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.plain import cut
from halocline.tiling.rules.gathered import cut_within
from halocline.tiling.rules.shape import from_front
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import laid_out, memory_order, noted, strides_in
from halocline.tiling.tensor import TileTensor

Ints = tuple[int, ...]


def each(function: Callable[[Tensor], Any], results: Any) -> Any:
    """`function` of the one tensor that an operator returned, or of each in its (named) tuple or list."""
    return function(results) if isinstance(results, Tensor) else type(results)([function(r) for r in results])


@lru_cache(maxsize=4096)
def resized(spec: TileSpec, size: Ints) -> TileSpec:
    """The tiles of an image of another size, cut at the same fractions. Only an uncut dim may change under a margin."""
    if size == spec.size:
        return spec
    cuts = tuple(tuple(new * c // line[-1] for c in line) for line, new in zip(spec.cuts, size))
    out = spec.with_cuts(cuts)
    if spec.bare:
        return out
    scales = tuple(zip(size, spec.size))
    have = tuple(tuple((a * new // n, b * new // n) for (a, b), (new, n) in zip(box, scales)) for box in spec.have)
    return out.with_have(have)


def cut_again(plain: Tensor, spec: TileSpec) -> TileTensor:
    """The tile of a whole tensor whose pixels are dealt out as those of `spec` are, in proportion to their number."""
    spec = resized(spec.without_margin(), tuple(plain.shape[d] for d in spec.dims))
    return TileTensor.wrap(cut(plain, spec), spec)


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
    return TileTensor.wrap(out, resized(spec, tuple(_whole(out, d, n, along) for d, n in zip(spec.dims, spec.size))))


def _whole(out: Tensor, dim: int, size: int, along: set[int]) -> int:
    return out.shape[dim] if dim in along else size
