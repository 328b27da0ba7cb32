"""The way out for an operator that mixes pixels too freely for tiles: gather them, compute on the whole, cut again.

Exact, and as expensive in memory as one device; lines.py is cheaper where it serves. Knows no operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch import Tensor

from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor


def on_whole(function: Callable[[Tensor], Any], x: TileTensor) -> Any:
    """`function`, which keeps the dims, of the whole tensor; of each result only the owned pixels are kept."""
    return each(lambda whole: cut_again(whole, x.spec), function(x.full()))


def cut_again(whole: Tensor, spec: TileSpec) -> TileTensor:
    """The tile of a plain tensor whose pixels are dealt out as those of `spec` are, in proportion to their number."""
    spec = resized(spec.without_margin(), tuple(whole.shape[d] for d in spec.dims))
    # A copy, so that the whole result does not stay in memory.
    return TileTensor.wrap(part_of(whole, spec).clone(), spec)


def each(function: Callable[[Tensor], Any], results: Any) -> Any:
    """`function` of the one tensor that an operator returned, or of each in its (named) tuple or list."""
    return function(results) if isinstance(results, Tensor) else type(results)([function(r) for r in results])


@lru_cache(maxsize=4096)
def resized(spec: TileSpec, size: tuple[int, ...]) -> TileSpec:
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


def cut_within(x: TileTensor, dim: int) -> bool:
    """Whether a dim is spatial and lies on more than one tile, so that no rank holds all of it."""
    dim = dim - x.ndim if dim >= 0 else dim
    return any(d == dim and n > 1 for d, n in zip(x.spec.dims, x.spec.grid))
