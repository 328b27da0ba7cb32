"""Normalisation within each sample and group of channels: group, instance and local response norm.

Statistics are over owned pixels only; the normalisation acts on all the pixels held. One collective in the forward and
one in the backward. Every pass over pixels is one of batch norm's kernels, run on (1, batch * channels, pixels).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, wraps
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.function import Function
from halocline.tiling.lanes import cut_in_batch, per_sample
from halocline.tiling.plain import all_for_tiles
from halocline.tiling.rules.gathered import on_whole
from halocline.tiling.rules.norm import (
    channel_moments,
    given_backward,
    normalised,
    scaled,
    subtract_line,
    update_running,
    with_graph,
)
from halocline.tiling.spec import TileSpec
from halocline.tiling.statistics import merge, owned_part
from halocline.tiling.strides import definite, suggested_format, with_definite_gradient
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.whole_order import as_on_whole


def _folded(x: Tensor) -> list[Tensor]:
    """Views of (batch, channels, pixels) as (1, batch * channels, pixels), or of each sample where that is no view."""
    if x.is_contiguous():
        return [x.view(1, x.shape[0] * x.shape[1], *x.shape[2:])]
    return list(x.split(1))


def _unfolded(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    if len(parts) > 1:
        return torch.cat(list(parts))
    if parts[0].shape == like.shape:  # a view would give dims of size 1 strides of no memory format
        return parts[0]
    # Not a view to autograd, which would not let an activation work on it in place; nothing else sees parts[0].
    out = torch.ops.aten._unsafe_view(parts[0], like.shape)
    strides = definite(out).stride()  # as torch makes it, of one sample, too
    return out if out.stride() == strides else out.new_empty_strided(out.shape, strides).copy_(out)


class _GroupNorm(Function):
    """Returns the mean and the biased variance of each sample's groups as well, for running statistics."""

    @staticmethod
    def forward(
        ctx: Any, local: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float, spec: TileSpec
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, channels = local.shape[:2]
        each = [channel_moments(part) for part in _folded(owned_part(local, spec))]
        means, variances = (torch.cat(m).view(batch, groups, -1) for m in zip(*each))
        # First the channels of a group are merged, then the ranks: both without cancellation.
        mean = means.mean(-1, keepdim=True)
        variance = (variances + (means - mean).square()).mean(-1, keepdim=True)
        mean, variance = merge(mean, variance, spec)
        ctx.groups, ctx.eps, ctx.spec = groups, eps, spec
        ctx.save_for_backward(local, weight, bias, mean, variance)
        weight = None if weight is None else weight.to(mean.dtype)
        bias = None if bias is None else bias.to(mean.dtype)
        ctx.mark_non_differentiable(mean, variance)
        folded = _folded(local)
        rows = zip(*(_per_fold(t, batch, channels, len(folded)) for t in (mean, variance, weight, bias)))
        out = [F.batch_norm(part, m, v, w, b, False, 0.0, eps) for part, (m, v, w, b) in zip(folded, rows)]
        return _unfolded(out, local), mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *given, mean, variance = ctx.saved_tensors
        wanted, spec = ctx.needs_input_grad, ctx.spec
        if torch.is_grad_enabled():
            return *with_graph(partial(_written, ctx.groups, ctx.eps, spec), given, wanted, grad), None, None, None
        local, weight = given[0], None if given[1] is None else given[1].to(mean.dtype)
        batch, channels = local.shape[:2]
        folded = _folded(local)
        grads = _folded(grad.contiguous()) if len(folded) == 1 else grad.split(1)
        scale = torch.rsqrt(variance + ctx.eps)
        weight = mean.new_ones(channels) if weight is None else weight  # or the GPU's kernel makes no sums
        rows = zip(*(_per_fold(t, batch, channels, len(folded)) for t in (weight, mean, variance)))
        # As if the statistics were given: grad * gain, and per sample and channel the sums of grad * normal and grad.
        each = [given_backward(g, part, w, m, v, ctx.eps, wanted[0]) for g, part, (w, m, v) in zip(grads, folded, rows)]
        grad_normal, grad_sum = (torch.cat([e[i] for e in each]).view(batch, channels) for i in (1, 2))
        grad_local = None
        if wanted[0]:
            grad_local = _unfolded([e[0] for e in each], local)
            # All held pixels are normalised, so all their gradients reach the statistics, made of owned pixels only.
            sums = torch.stack([grad_sum, grad_normal])
            sums = (sums * weight).view(2, batch, ctx.groups, -1).sum(-1, keepdim=True)
            whole = spec.whole_shape(tuple(local.shape))
            total = spec.exchanger.all_reduce(sums) * scale / (prod(whole[1:]) // ctx.groups)
            slope = total[1] * scale
            offset = total[0] - slope * mean
            along = [batch, channels] + [1] * (local.ndim - 2)
            slope, offset = (t.expand(-1, -1, channels // ctx.groups).reshape(along) for t in (slope, offset))
            subtract_line(grad_local, local, slope, offset, spec)
        grad_weight = grad_normal.sum(0).to(given[1].dtype) if wanted[1] else None
        grad_bias = grad_sum.sum(0).to(given[2].dtype) if wanted[2] else None
        return grad_local, grad_weight, grad_bias, None, None, None


def _written(
    groups: int, eps: float, spec: TileSpec, local: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Group norm in elementary operations."""
    apart = local.unflatten(1, (groups, -1))  # spatial dims are counted from the end
    return scaled(normalised(apart, spec, tuple(range(2, apart.ndim)), eps).flatten(1, 2), weight, bias)


def _per_fold(values: Tensor | None, batch: int, channels: int, folds: int) -> Sequence[Tensor | None]:
    """Values per channel, or per sample and group, repeated for each sample and channel; one row per fold."""
    if values is None:
        return [None] * folds
    if values.ndim == 1:
        values = values.expand(batch, -1)
    else:
        values = values.expand(-1, -1, channels // values.shape[1])
    return list(values.reshape(folds, -1))


def as_autocast(local: Tensor) -> Tensor:
    """On GPUs autocast runs group and layer norm in float32."""
    if local.is_cuda and torch.is_autocast_enabled("cuda") and local.dtype is not torch.float64:
        return local.float()
    return local


def _check(function: Any, input: Any, *parameters: Tensor | None) -> TileTensor:
    if any(isinstance(p, TileTensor) for p in parameters):
        raise untiled(function, (input, *parameters), why="its weight and bias must be plain")
    if not isinstance(input, TileTensor) or min(input.spec.positions(input.ndim)) < 2:
        raise untiled(function, (input,), why="the dims 0 and 1, batch and channels, must not be cut")
    return input


def _without_samples(local: Tensor, *parameters: Tensor | None) -> Tensor:
    """What a lane without samples makes: nothing, which still depends on the parameters."""
    return local + sum(p[:0].sum() for p in parameters if p is not None)


@rule(F.group_norm)
@per_sample(F.group_norm)
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> TileTensor:
    x = _check(F.group_norm, input, weight, bias)
    spec, channels = x.spec, x.shape[1]
    if channels % num_groups:
        raise ValueError(f"{channels} channels cannot be split into {num_groups} groups; use a divisor of {channels}")
    weight, bias = all_for_tiles((weight, bias), spec.exchanger)
    if spec.exchanger.size == 1:
        return TileTensor.wrap(F.group_norm(x.local, num_groups, weight, bias, eps), spec)
    if not x.local.shape[0]:
        return TileTensor.wrap(_without_samples(x.local, weight, bias), spec)
    local = as_autocast(x.local)
    # As torch makes it: on a CPU it keeps the memory format, where the strides are truly those of one.
    form = torch.contiguous_format if local.is_cuda else suggested_format(local)
    local = local.contiguous(memory_format=form)
    out, _, _ = _GroupNorm.apply(local, weight, bias, num_groups, eps, spec)
    return TileTensor.wrap(as_on_whole(out, spec, F.group_norm, (x, 1)), spec)


@wraps(F.instance_norm)
def _as_torch(plain: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """torch's instance norm, which folds the samples into the channels: what it folds must be definite when folded."""
    if not plain.shape[0]:  # which torch takes, but not back
        return _without_samples(plain, *args[2:4], *(kwargs.get(name) for name in ("weight", "bias")))
    return with_definite_gradient(F.instance_norm(definite(plain.contiguous()), *args, **kwargs), contiguous=True)


@rule(F.instance_norm)
def instance_norm(input: Tensor, running_mean: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    if isinstance(input, TileTensor) and cut_in_batch(input) and running_mean is not None:
        # The running statistics are of all samples: every rank needs them all.
        return on_whole(lambda whole: _as_torch(whole, running_mean, *args, **kwargs), input)
    return _instance_norm(input, running_mean, *args, **kwargs)


@per_sample(_as_torch)
def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> TileTensor:
    x = _check(F.instance_norm, input, weight, bias)
    spec = x.spec
    count = prod(x.shape[2:])
    if use_input_stats and count == 1:
        raise ValueError(f"instance normalisation needs more than 1 pixel when training, got {tuple(x.shape)}")
    weight, bias = all_for_tiles((weight, bias), spec.exchanger)
    if not use_input_stats or spec.exchanger.size == 1:
        out = _as_torch(x.local, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        return TileTensor.wrap(out, spec)
    if not x.local.shape[0]:
        return TileTensor.wrap(_without_samples(x.local, weight, bias), spec)
    # Contiguous, as torch makes it.
    out, mean, variance = _GroupNorm.apply(x.local.contiguous(), weight, bias, x.shape[1], eps, spec)
    with torch.no_grad():
        update_running((running_mean, running_var, momentum), mean.mean(0).flatten(), variance.mean(0).flatten(), count)
    return TileTensor.wrap(out, spec)


@rule(F.local_response_norm)
@per_sample(F.local_response_norm)
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> TileTensor:
    """Over neighbouring channels of each pixel; dims after the channels are only counted as pixels."""
    x = _check(F.local_response_norm, input)
    if not x.local.numel():  # the pooling inside refuses some empty tensors
        return TileTensor.wrap(x.local / 1, x.spec)  # which makes integers floats, as the division inside
    out = F.local_response_norm(x.local, size, alpha, beta, k)
    return TileTensor.wrap(as_on_whole(out, x.spec, F.local_response_norm, (x, size)), x.spec)


@rule(torch.group_norm)
def _torch_group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> TileTensor:
    return group_norm(input, num_groups, weight, bias, eps)


@rule(torch.instance_norm)
def _torch_instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    return instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
