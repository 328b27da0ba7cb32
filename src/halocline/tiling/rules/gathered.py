"""The way out for an operator that mixes pixels too freely for tiles: gather them, compute on the whole, cut again.

Exact, and as expensive in memory as one device. Knows no operator.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.tensor import TileTensor


def on_whole(function: Callable[[Tensor], Tensor], x: TileTensor) -> TileTensor:
    """`function`, which keeps the shape, of the whole tensor; of the result only the owned pixels are kept."""
    spec = x.spec.without_margin()
    # A copy, so that the whole result does not stay in memory. Only this part's gradient flows back, so ranks' parts
    # add up, for the tensor (gathered) as for the parameters that `function` uses.
    return TileTensor.wrap(part_of(function(x.full()), spec).clone(), spec)


def cut_within(x: TileTensor, dim: int) -> bool:
    """Whether a dim is spatial and lies on more than one tile, so that no rank holds all of it."""
    dim = dim - x.ndim if dim >= 0 else dim
    return any(d == dim and n > 1 for d, n in zip(x.spec.dims, x.spec.grid))
