"""Losses of tiles against dense targets: tiles themselves, or whole tensors that are sliced to the tile.

A mean divides by what the whole image divides by, so the loss is a plain number, equal on every rank; without
reduction it is a tile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction as legacy

from halocline.tiling.plain import all_sum, for_tiles
from halocline.tiling.rules.elementwise import align, named
from halocline.tiling.rules.gathered import held_part, on_wholes
from halocline.tiling.spec import TileSpec
from halocline.tiling.statistics import LOW_PRECISION
from halocline.tiling.tensor import TileTensor, rule, rules, untiled
from halocline.tiling.whole_order import as_on_whole

_form = cache(signature)


def _reduction(arguments: dict[str, Any]) -> str:
    """The reduction asked for, in its present or its older form, which torch still takes and warns of."""
    average, reduce = arguments.pop("size_average", None), arguments.pop("reduce", None)
    reduction = arguments["reduction"]
    if average is not None or reduce is not None:
        reduction = legacy.legacy_get_string(average, reduce)
    if reduction not in ("none", "mean", "sum", "batchmean"):
        raise ValueError(f"{reduction} is not a valid value for reduction; use none, mean or sum")
    return reduction


@rules(named("mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy poisson_nll_loss", F))
@rules(named("binary_cross_entropy_with_logits soft_margin_loss hinge_embedding_loss margin_ranking_loss", F))
def pixelwise(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """A loss that compares pixel with pixel and broadcasts its tensors."""
    bound = _form(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    if function is F.l1_loss:
        arguments["weight"] = _weight_not_told()
    reduction = _reduction(arguments)
    if reduction == "batchmean" and function is not F.kl_div:
        raise ValueError("only kl_div has the reduction batchmean; use none, mean or sum")
    arguments["reduction"] = "none"
    # A mean of squares or distances is divided by the sum of their weights; huber's and those of others are not.
    weight = arguments.get("weight") if function in (F.mse_loss, F.l1_loss) else None
    names = [name for name, value in arguments.items() if isinstance(value, Tensor)]
    values, spec = align([arguments[name] for name in names], function)
    given = dict(arguments)
    arguments.update(zip(names, values))
    out = TileTensor.wrap(as_on_whole(function(**arguments), spec, function, (), given), spec)
    if reduction == "mean" and weight is not None:
        return out.sum() / torch.sum(weight)
    return out.sum() / out.shape[0] if reduction == "batchmean" else _over_pixels(out, reduction)


def _over_pixels(out: Tensor, reduction: str) -> Tensor:
    return out.mean() if reduction == "mean" else out.sum() if reduction == "sum" else out


def _weight_not_told() -> Tensor | None:
    """The weight that F.l1_loss was called with, which torch does not pass on to rules: read where it waits for us."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not F.l1_loss.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals["weight"]


def _classes(input: TileTensor, target: Tensor) -> tuple[Tensor, Tensor, TileSpec, bool]:
    """The owned input and target, the spec without the dim of classes, and whether the target is a class per pixel."""
    whole = tuple(input.shape)
    by_class = target.ndim == input.ndim - 1
    if tuple(target.shape) != (whole[:1] + whole[2:] if by_class else whole):
        raise ValueError(
            f"the target {tuple(target.shape)} does not fit the input {whole}; give {whole[:1] + whole[2:]} classes"
        )
    spec = input.spec.without_margin()
    pixels = spec.with_dims(tuple(d + 1 if d < 1 - input.ndim else d for d in spec.dims))
    return input.owned, held_part(target, pixels if by_class else spec), pixels, by_class


def _reduced(sums: Tensor, divisor: Tensor | float | None, spec: TileSpec) -> Tensor:
    """The ranks' sums in one, divided by their divisors' sum (a tensor) or by a number."""
    dtype = sums.dtype
    wide = sums.float() if dtype in LOW_PRECISION else sums
    if not isinstance(divisor, Tensor):
        whole = all_sum(wide, spec.exchanger)
        return (whole if divisor is None else whole / divisor).to(dtype)
    whole, weight = all_sum(torch.stack([wide, divisor.detach().to(wide.dtype)]), spec.exchanger).unbind()
    return (whole / weight.detach()).to(dtype)


def _weight_of(target: Tensor, weight: Tensor | None, ignored: int, dtype: torch.dtype) -> Tensor:
    """The sum of the weights of a rank's pixels."""
    counted = target != ignored
    each = counted if weight is None else torch.where(counted, weight[torch.where(counted, target, 0)], 0.0)
    return each.sum(dtype=torch.promote_types(dtype, torch.float32))


@rules((F.cross_entropy, F.nll_loss))
def classified(
    function: Callable[..., Tensor],
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    **options: Any,
) -> Tensor:
    """A loss of the values that each pixel has for all classes, of which `target` names one, or has shares."""
    reduction = _reduction({"size_average": size_average, "reduce": reduce, "reduction": reduction})
    options["ignore_index"] = ignore_index
    # Of a tile of (batch, classes, pixels), its classes uncut, pixels can be judged apart.
    if not isinstance(input, TileTensor) or input.ndim < 2 or 1 in input.spec.positions(input.ndim):
        return on_wholes(function, input, target, weight, reduction=reduction, **options)
    owned, part, spec, by_class = _classes(input, target)
    weight = None if weight is None else for_tiles(weight, spec.exchanger)
    if not by_class and function is F.nll_loss:
        raise ValueError(f"nll_loss wants a class per pixel, but got a target of shape {tuple(target.shape)}")
    if reduction == "none":
        return TileTensor.wrap(function(owned, part, weight, reduction="none", **options), spec)
    sums = function(owned, part, weight, reduction="sum", **options)
    if reduction == "sum":
        return _reduced(sums, None, spec)
    if by_class:
        return _reduced(sums, _weight_of(part, weight, ignore_index, sums.dtype), spec)
    return _reduced(sums, input.numel() / input.shape[1], spec)


@rule(F.gaussian_nll_loss)
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Written out, as torch looks at the values of the variance and at its shape. The clamp has no gradient."""
    constant = 0.5 * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64)).item() if full else 0.0
    reduction = _reduction({"reduction": reduction})
    if not isinstance(var, Tensor):
        raise untiled(F.gaussian_nll_loss, (input, target, var), why="give the variance as a tensor")
    if var.shape != input.shape and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    if var.ndim and var.shape not in (input.shape, (*input.shape[:-1], 1)):
        raise untiled(F.gaussian_nll_loss, (input, target, var), why="the variance must be of the input's shape")
    var = var + (var.detach().clamp(min=eps) - var.detach())
    return _over_pixels(0.5 * (torch.log(var) + (input - target) ** 2 / var) + constant, reduction)
