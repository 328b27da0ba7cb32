"""Sums, means, variances, norms, extremes and the like over any dims.

Over no spatial dim they act on each pixel held and stay tiles. Over all spatial dims each rank reduces the pixels it
owns, the ranks' results are merged, and the whole result is plain. Over some of them it is plain, too: of sums each
rank's lie at their place among zeros, for everything else the tensor is gathered first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.function import Function
from halocline.tiling.plain import all_for_tiles, all_sum, among_zeros, for_tiles
from halocline.tiling.rules.elementwise import align, named
from halocline.tiling.rules.gathered import wrapped
from halocline.tiling.spec import TileSpec
from halocline.tiling.statistics import LOW_PRECISION, Dims, Moments, owned_pixels
from halocline.tiling.tensor import TileTensor, rule, rules, untiled


def reduced_dims(ndim: int, dim: Any) -> Dims:
    """The dims that a `dim` argument names, counted from the front and sorted; all of them for None or ()."""
    if dim is None or _none(dim):
        return tuple(range(ndim))
    given = tuple(map(int, dim)) if isinstance(dim, (list, tuple)) else (int(dim),)
    for d in given:
        if not -ndim <= d < ndim:
            raise IndexError(f"dim {d} is out of range for a tensor of {ndim} dims; use -{ndim} to {ndim - 1}")
    dims = tuple(sorted({d % ndim for d in given}))
    if len(dims) < len(given):
        raise RuntimeError(f"dim={tuple(given)} names a dim of a tensor of {ndim} dims twice; name each one once")
    return dims


def _none(dim: Any) -> bool:
    """Whether a `dim` argument names no dims."""
    return isinstance(dim, (list, tuple)) and not dim


def spec_after_reduction(spec: TileSpec, ndim: int, dims: Dims, keepdim: bool) -> TileSpec:
    """The spec of what remains when non-spatial dims (counted from the front) are reduced."""
    if keepdim:
        return spec
    moved = tuple(d + len([r for r in dims if r - ndim > d]) for d in spec.dims)
    return spec if moved == spec.dims else spec.with_dims(moved)


def _spatial(x: TileTensor, dims: Dims) -> tuple[bool, bool]:
    """Whether `dims` hold any spatial dim of `x`, and whether they hold all of them."""
    within = [d in dims for d in x.spec.positions(x.ndim)]
    return any(within), all(within)


def _at_its_place(part: Tensor, spec: TileSpec, dims: Dims) -> Tensor:
    """A rank's result among zeros for the whole: `dims` are reduced and kept as one, other cut dims get their size."""
    left = [i for i, place in enumerate(spec.positions(part.ndim)) if place not in dims]
    whole = [(0, spec.size[i]) for i in left]
    return among_zeros(part, [spec.dims[i] for i in left], [spec.box[i] for i in left], whole)


def _squeezed(kept: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    return kept if keepdim else kept.squeeze(dims)


# ------------------------------------------------------------------------------------------------------------- sums


@rules((torch.sum, Tensor.sum), False)
@rules((torch.mean, Tensor.mean), True)
def reduce(
    function: Callable[..., Tensor],
    mean: bool,
    input: TileTensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    ndim, local, spec = input.ndim, input.local, input.spec
    dims = reduced_dims(ndim, dim)
    some, every = _spatial(input, dims)
    if not some:
        out = function(local, dim=dims, keepdim=keepdim, dtype=dtype)
        return TileTensor.wrap(out, spec_after_reduction(spec, ndim, dims, keepdim))
    if dtype is None and not local.dtype.is_floating_point and not local.dtype.is_complex:
        if mean:
            raise ValueError(f"the mean of a tensor of {local.dtype} has no dtype; give dtype=torch.float32 or another")
        dtype = torch.int64
    if dtype is None and not mean and local.is_cuda and torch.is_autocast_enabled("cuda"):
        dtype = torch.promote_types(local.dtype, torch.float32)  # as autocast sums
    result = dtype or local.dtype
    # The ranks' parts are summed in at least float32, so that low precision rounds once, as on one device.
    wide = torch.float32 if result in LOW_PRECISION else result
    part = torch.sum(input.owned, dim=dims, keepdim=True, dtype=wide)
    if not every:
        part = _at_its_place(part, spec, dims)
    total = _squeezed(all_sum(part, spec.exchanger), dims, keepdim)
    return (total / prod(input.shape[d] for d in dims) if mean else total).to(result)


@rule(torch.nanmean, Tensor.nanmean)
def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    numbers = torch.logical_not(torch.isnan(input)).sum(dim, keepdim)
    return torch.nansum(input, dim, keepdim, dtype=dtype) / numbers


# --------------------------------------------------------------------------------------- merged from the ranks' results


def _stacked(part: Tensor, spec: TileSpec) -> Tensor:
    """The results of all ranks that own pixels, in a new first dim; differentiable."""
    sent = part.to(torch.uint8) if part.dtype is torch.bool else part  # not all backends send bools
    rank, zeros = spec.exchanger.rank, torch.zeros_like(sent)
    owners = [r for r, n in enumerate(owned_pixels(spec)) if n]
    # Each rank's lies at its place among zeros; a rank without pixels has none, and stays part of the graph.
    placed = torch.stack([sent if r == rank else zeros for r in owners]) + sent.flatten()[:0].sum(dtype=sent.dtype)
    return all_sum(placed, spec.exchanger).to(part.dtype)


def _merged(function: Callable[[Tensor], Tensor], merge: Callable[[Tensor], Tensor], x: TileTensor) -> Tensor:
    """`function` (over all spatial dims and perhaps others) of each rank's pixels, merged over the first dim."""
    owned = x.owned
    if not owned.numel():
        # Any value of the right shape, connected to the tile; what a rank without pixels says is left out.
        owned = owned.sum(x.spec.dims, keepdim=True).to(owned.dtype)
    part = function(owned)
    wide = part.float() if part.dtype in LOW_PRECISION else part
    return merge(_stacked(wide, x.spec)).to(part.dtype)


def _of_nothing(function: Callable[..., Tensor], x: TileTensor, args: Any, spec: TileSpec) -> Tensor:
    """What a function that refuses tensors without values makes of an empty tile: as few, connected to the tile."""
    like = function(torch.zeros([max(n, 1) for n in x.local.shape], dtype=x.dtype, device=x.device), *args)
    return like.new_zeros(spec.local_shape(tuple(like.shape))) + x.local.sum() + like.flatten()[:0].sum()


_MERGES: dict[str, Callable[..., Tensor]] = {
    "prod": torch.prod,
    "logsumexp": torch.logsumexp,
    "any": torch.any,
    "all": torch.all,
    "count_nonzero": torch.sum,
    "nansum": torch.sum,
}
"""What merges the ranks' results. The rest are of the whole tensor when pixels are reduced: positions and ranks of
values do not merge."""


@rules(named(" ".join(_MERGES), torch, Tensor, torch.special), 0, None)
@rules(named("max min argmax argmin median nanmedian", torch, Tensor), 0, None)
@rules(named("mode", torch, Tensor), 0, -1)
@rules(named("kthvalue", torch, Tensor), 1, -1)
@rules(named("quantile nanquantile", torch, Tensor), 1, None)
def reduction(
    function: Callable[..., Any], position: int, default: Any, input: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """One whose argument number `position` after the tensor is `dim`."""
    name = function.__name__.removeprefix("special_")
    if name == "count_nonzero" and len(args) > 1:  # whose method takes dims one by one
        args = (args,)
    dim = args[position] if len(args) > position else default
    if isinstance(dim, Tensor) and name in ("max", "min") and len(args) == 1:  # of two tensors
        return (torch.maximum if name == "max" else torch.minimum)(input, dim)
    keepdim = args[position + 1] if len(args) > position + 1 else False
    if not isinstance(input, TileTensor):
        raise untiled(function, (input, *args), kwargs, why="its input is not tiled but another argument is")
    # Of no dims, any and all are those of each value; everything else is that of all of them.
    dims = () if name in ("any", "all") and _none(dim) else reduced_dims(input.ndim, dim)
    some, every = _spatial(input, dims)
    if not some:
        spec = spec_after_reduction(input.spec, input.ndim, dims, keepdim)
        args = all_for_tiles(args, spec.exchanger)  # which quantile is wanted, if that is learned
        if "quantile" in name and not input.local.numel():  # which torch refuses
            return TileTensor.wrap(_of_nothing(partial(function, **kwargs), input, args, spec), spec)
        return wrapped(function(input.local, *args, **kwargs), spec)
    if every and dim is None and name in ("max", "min"):
        return extreme(torch.amax if name == "max" else torch.amin, input, dims)
    if every and name in _MERGES:
        return _merged(lambda part: function(part, *args, **kwargs), partial(_MERGES[name], dim=0), input)
    return function(input.full(), *args, **kwargs)


# --------------------------------------------------------------------------------------------------------- extremes


class _Extreme(Function):
    """The largest or smallest value of all ranks' pixels. As on one device, equal ones share the gradient evenly."""

    @staticmethod
    def forward(ctx: Any, owned: Tensor, function: Callable[..., Tensor], dims: Dims, spec: TileSpec) -> Tensor:
        part = function(owned, dims, keepdim=True) if owned.numel() else owned.sum(dims, keepdim=True).to(owned.dtype)
        value = function(_stacked(part, spec), 0)
        ctx.dims, ctx.spec = dims, spec
        ctx.save_for_backward(owned, value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        owned, value = ctx.saved_tensors
        chosen, grad = owned == value, for_tiles(grad, ctx.spec.exchanger)
        number = ctx.spec.exchanger.all_reduce(chosen.sum(ctx.dims, keepdim=True).double())
        return chosen * (grad / number).to(grad.dtype), None, None, None


@rules(named("amax amin"))
def extreme(function: Callable[..., Tensor], input: TileTensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    spec, dims = input.spec, reduced_dims(input.ndim, dim)
    some, every = _spatial(input, dims)
    if not some:
        out = function(input.local, dims, keepdim=keepdim)
        return TileTensor.wrap(out, spec_after_reduction(spec, input.ndim, dims, keepdim))
    if not every:
        return function(input.full(), dims, keepdim=keepdim)
    return _squeezed(_Extreme.apply(input.owned, function, dims, spec), dims, keepdim)


@rule(torch.aminmax, Tensor.aminmax)
def aminmax(input: TileTensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    both = extreme(torch.amin, input, dim, keepdim), extreme(torch.amax, input, dim, keepdim)
    return torch.return_types.aminmax(both)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ variances and norms


@rules(named("var"), False, False)
@rules(named("std"), True, False)
@rules(named("var_mean"), False, True)
@rules(named("std_mean"), True, True)
def variance(
    function: Callable[..., Any], deviation: bool, with_mean: bool, input: TileTensor, *args: Any, **kwargs: Any
) -> Any:
    if args and isinstance(args[0], bool):  # var(unbiased)
        args = (None, *args)
    asked = {**dict(zip(("dim", "unbiased", "keepdim"), args)), **kwargs}
    keepdim = asked.get("keepdim", False)
    correction = asked.get("correction")
    # A float, or a number of numpy's or a tensor would have the dtype of the division.
    correction = float(asked.get("unbiased", True) if correction is None else correction)
    if _none(asked.get("dim")):  # whose gradient torch divides by another number than its value
        return function(input.full(), (), correction=correction, keepdim=keepdim)
    dims = reduced_dims(input.ndim, asked.get("dim"))
    if input.dtype.is_complex:  # the variances of the real and the imaginary part add up
        parts = [torch.var(part, dims, correction=correction, keepdim=keepdim) for part in (input.real, input.imag)]
        spread = torch.sqrt(parts[0] + parts[1]) if deviation else parts[0] + parts[1]
        return (spread, torch.mean(input, dims, keepdim)) if with_mean else spread
    some, every = _spatial(input, dims)
    if not every:
        whole = input.full() if some else input.local
        if whole.numel():
            out = function(whole, dims, correction=correction, keepdim=keepdim)
        else:  # an empty tile, of which torch would warn
            out = whole.sum(dims, keepdim=keepdim)
            out = (out, out) if with_mean else out
        return out if some else wrapped(out, spec_after_reduction(input.spec, input.ndim, dims, keepdim))
    average, spread = Moments.apply(input.owned, tuple(d - input.ndim for d in dims), input.spec)
    count = prod(input.shape[d] for d in dims)
    spread = spread * (count / (count - correction) if count > correction else inf)
    if deviation:  # whose gradient at 0 is 0, as on one device
        zero = spread == 0
        spread = torch.where(zero, 1.0, spread).sqrt().masked_fill(zero, 0.0)
    average, spread = (_squeezed(t, dims, keepdim).to(input.dtype) for t in (average, spread))
    return (spread, average) if with_mean else spread


@rule(torch.linalg.vector_norm)
def vector_norm(
    x: TileTensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    dims = reduced_dims(x.ndim, dim)
    some, every = _spatial(x, dims)
    if not every:
        out = torch.linalg.vector_norm(x.full() if some else x.local, ord, dims, keepdim, dtype=dtype)
        return out if some else TileTensor.wrap(out, spec_after_reduction(x.spec, x.ndim, dims, keepdim))
    x = x if dtype is None else x.to(dtype)  # type: ignore[assignment]
    if ord in (inf, -inf):
        return extreme(torch.amax if ord > 0 else torch.amin, torch.abs(x), dims, keepdim)  # type: ignore[arg-type]
    if ord == 0 and x.is_complex():  # or torch warns of a single value
        x = torch.abs(x)  # type: ignore[assignment]
    return _merged(
        lambda part: torch.linalg.vector_norm(part, ord, dims, keepdim),
        lambda parts: torch.linalg.vector_norm(parts, ord, 0) if ord else parts.sum(0),  # of counts
        x,  # type: ignore[arg-type]
    )


@rule(torch.norm, Tensor.norm)
def norm(
    input: TileTensor,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if p == "nuc":
        raise untiled(torch.norm, (input, p), why="the nuclear norm has no rule")
    return vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


@rule(torch.linalg.norm)
def linalg_norm(
    A: TileTensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    if ord == "fro" or (ord is not None and (dim is None or (isinstance(dim, (list, tuple)) and len(dim) != 1))):
        return matrix_norm(A, ord, (-2, -1) if dim is None and A.ndim == 2 else dim, keepdim, dtype=dtype)
    return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


@rule(torch.linalg.matrix_norm)
def matrix_norm(
    A: TileTensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """That of Frobenius, the length of all values; the others need whole matrices."""
    if ord != "fro" or not isinstance(dim, (list, tuple)) or len(dim) != 2:
        why = "a matrix norm other than 'fro' of two dims has no rule"
        raise untiled(torch.linalg.matrix_norm, (A, ord, dim), why=why)
    return vector_norm(A, 2, dim, keepdim, dtype=dtype)


@rule(F.cosine_similarity)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    ndim = max(x1.ndim, x2.ndim)
    (first, second), spec = align((x1, x2), F.cosine_similarity)
    if dim % ndim in spec.positions(ndim):
        one, other = (x.full() if isinstance(x, TileTensor) else x for x in (x1, x2))
        return F.cosine_similarity(one, other, dim, eps)
    out = F.cosine_similarity(first, second, dim, eps)
    return TileTensor.wrap(out, spec_after_reduction(spec, ndim, (dim % ndim,), False))
