"""Sums and means: over all spatial dims they leave the tiling by one sum over ranks; over others they stay tiles."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.route import all_sum
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, rule

Dims = tuple[int, ...]


def reduced_dims(ndim: int, dim: Any) -> Dims:
    """The dims that a `dim` argument names, counted from the front and sorted; all of them for None or ()."""
    if dim is None or dim == () or dim == []:
        return tuple(range(ndim))
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    for d in given:
        if not -ndim <= d < ndim:
            raise IndexError(f"dim {d} is out of range for a tensor of {ndim} dims; use -{ndim} to {ndim - 1}")
    return tuple(sorted({d % ndim for d in given}))


def spec_after_reduction(spec: TileSpec, ndim: int, dims: Dims, keepdim: bool) -> TileSpec:
    """The spec of what remains when non-spatial dims (counted from the front) are reduced."""
    if keepdim:
        return spec
    moved = tuple(d + len([r for r in dims if r - ndim > d]) for d in spec.dims)
    return spec if moved == spec.dims else spec.with_dims(moved)


def reduce(
    function: Callable[..., Tensor], x: TileTensor, dim: Any, keepdim: bool, mean: bool, dtype: torch.dtype | None
) -> Tensor:
    """`function` (a sum) over `dim`, then divided by the number of values for a mean."""
    ndim = x.ndim
    dims = reduced_dims(ndim, dim)
    spatial = x.spec.positions(ndim)
    cut = [d for d in spatial if d in dims]
    count = prod(x.shape[d] for d in dims) if mean else 1
    if not cut:
        part = function(x.local, dim=dims, keepdim=keepdim, dtype=dtype)
        out = part / count if mean else part
        return TileTensor.wrap(out, spec_after_reduction(x.spec, ndim, dims, keepdim))
    if len(cut) < len(spatial):  # what remains would be tiles that several ranks share: gather instead
        whole = function(x.full(), dim=dims, keepdim=keepdim, dtype=dtype)
        return whole / count if mean else whole
    local = x.owned
    result = dtype or (local.dtype if local.dtype.is_floating_point or local.dtype.is_complex else torch.int64)
    # The ranks' parts are summed in at least float32, so that low precision rounds once, as on one device.
    wide = torch.float32 if result in (torch.float16, torch.bfloat16) else result
    total = all_sum(function(local, dim=dims, keepdim=keepdim, dtype=wide), x.spec.exchanger)
    return (total / count if mean else total).to(result)


@rule(torch.sum, Tensor.sum)
def sum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    assert isinstance(input, TileTensor)
    return reduce(torch.sum, input, dim, keepdim, False, dtype)


@rule(torch.mean, Tensor.mean)
def mean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    assert isinstance(input, TileTensor)
    return reduce(torch.sum, input, dim, keepdim, True, dtype)
