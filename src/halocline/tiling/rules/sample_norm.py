"""Normalisation within each sample: group, instance, layer, RMS and local response norm, and F.normalize.

Statistics are over owned pixels only; the normalisation acts on all the pixels held. Over channels each pixel is
normalised by itself; over pixels there is one collective in the forward and one in the backward. Where rows that
several ranks share are normalised one by one, the tensor is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.function import Function
from halocline.tiling.lanes import cut_in_batch, per_sample
from halocline.tiling.plain import all_for_tiles, for_tiles
from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.rules.gathered import cut_within, on_whole
from halocline.tiling.rules.norm import (
    affine,
    by_channel,
    channel_moments,
    given_backward,
    in_dtype,
    normalised,
    other_form,
    subtract_line,
    update_running,
    with_graph,
)
from halocline.tiling.spec import TileSpec
from halocline.tiling.statistics import LOW_PRECISION, Dims, merge, moments, owned_part
from halocline.tiling.strides import definite, in_format_of, suggested_format, with_definite_gradient
from halocline.tiling.tensor import TileTensor, rule, rules, untiled
from halocline.tiling.whole_order import as_on_whole

# ------------------------------------------------------------------------------------------------- group and instance


def _folded(x: Tensor) -> list[Tensor]:
    """Views of (batch, channels, pixels) as (1, batch * channels, pixels), or of each sample where that is no view: so
    that every pass over pixels is one of batch norm's kernels."""
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
        weight, bias = in_dtype(mean.dtype, weight, bias)
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

            def written(local: Tensor, *params: Tensor | None) -> Tensor:
                apart = local.unflatten(1, (ctx.groups, -1))  # spatial dims are counted from the end
                normal = normalised(apart, spec, tuple(range(2, apart.ndim)), ctx.eps).flatten(1, 2)
                return by_channel(normal, *params)

            return *with_graph(written, given, wanted, grad), None, None, None
        local = given[0]
        batch, channels = local.shape[:2]
        folded = _folded(local)
        grads = _folded(grad.contiguous()) if len(folded) == 1 else grad.split(1)
        scale = torch.rsqrt(variance + ctx.eps)
        # Without a weight the GPU's kernel makes no sums.
        weight = mean.new_ones(channels) if given[1] is None else given[1].to(mean.dtype)
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


def _per_fold(values: Tensor | None, batch: int, channels: int, folds: int) -> Sequence[Tensor | None]:
    """Values per channel, or per sample and group, repeated for each sample and channel; one row per fold."""
    if values is None:
        return [None] * folds
    if values.ndim == 1:
        values = values.expand(batch, -1)
    else:
        values = values.expand(-1, -1, channels // values.shape[1])
    return list(values.reshape(folds, -1))


def _as_autocast(local: Tensor) -> Tensor:
    """On GPUs autocast runs group and layer norm in float32."""
    if local.is_cuda and torch.is_autocast_enabled("cuda") and local.dtype is not torch.float64:
        return local.float()
    return local


def _check_plain(function: Any, input: Any, *parameters: Tensor | None) -> None:
    if any(isinstance(p, TileTensor) for p in parameters):
        raise untiled(function, (input, *parameters), why="its weight and bias must be plain")


def _of_nothing(local: Tensor, *parameters: Tensor | None) -> Tensor:
    """What an empty tile or a lane without samples makes: nothing, which still depends on the parameters."""
    return local + sum(p[:0].sum() for p in parameters if p is not None)


@rule(F.group_norm)
@per_sample(F.group_norm)
def group_norm(
    input: TileTensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> TileTensor:
    _check_plain(F.group_norm, input, weight, bias)
    x, spec, channels = input, input.spec, input.shape[1]
    if channels % num_groups:
        raise ValueError(f"{channels} channels cannot be split into {num_groups} groups; use a divisor of {channels}")
    weight, bias = all_for_tiles((weight, bias), spec.exchanger)
    if spec.exchanger.size == 1:
        return TileTensor.wrap(F.group_norm(x.local, num_groups, weight, bias, eps), spec)
    if not x.local.shape[0]:
        return TileTensor.wrap(_of_nothing(x.local, weight, bias), spec)
    local = _as_autocast(x.local)
    # As torch makes it: on a CPU it keeps the memory format, where the strides are truly those of one.
    form = torch.contiguous_format if local.is_cuda else suggested_format(local)
    local = local.contiguous(memory_format=form)
    out, _, _ = _GroupNorm.apply(local, weight, bias, num_groups, eps, spec)
    return TileTensor.wrap(as_on_whole(out, spec, F.group_norm, (x, 1)), spec)


@wraps(F.instance_norm)
def _as_torch(plain: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """torch's instance norm, which folds the samples into the channels: what it folds must be definite when folded."""
    if not plain.shape[0]:  # which torch takes, but not back
        return _of_nothing(plain, *args[2:4], *(kwargs.get(name) for name in ("weight", "bias")))
    return with_definite_gradient(F.instance_norm(definite(plain.contiguous()), *args, **kwargs), contiguous=True)


@rule(F.instance_norm)
def instance_norm(input: Any, running_mean: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    if isinstance(input, TileTensor) and cut_in_batch(input) and running_mean is not None:
        # The running statistics are of all samples: every rank needs them all.
        return on_whole(lambda whole: _as_torch(whole, running_mean, *args, **kwargs), input)
    return _instance_norm(input, running_mean, *args, **kwargs)


@per_sample(_as_torch)
def _instance_norm(
    input: TileTensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> TileTensor:
    _check_plain(F.instance_norm, input, weight, bias)
    x, spec = input, input.spec
    count = prod(x.shape[2:])
    if use_input_stats and count == 1:
        raise ValueError(f"instance normalisation needs more than 1 pixel when training, got {tuple(x.shape)}")
    weight, bias = all_for_tiles((weight, bias), spec.exchanger)
    if not use_input_stats or spec.exchanger.size == 1:
        out = _as_torch(x.local, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        return TileTensor.wrap(out, spec)
    if not x.local.shape[0]:
        return TileTensor.wrap(_of_nothing(x.local, weight, bias), spec)
    # Contiguous, as torch makes it.
    out, mean, variance = _GroupNorm.apply(x.local.contiguous(), weight, bias, x.shape[1], eps, spec)
    with torch.no_grad():
        update_running((running_mean, running_var, momentum), mean.mean(0).flatten(), variance.mean(0).flatten(), count)
    return TileTensor.wrap(out, spec)


@rule(F.local_response_norm)
@per_sample(F.local_response_norm)
def local_response_norm(
    input: TileTensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> TileTensor:
    """Over neighbouring channels of each pixel; dims after the channels are only counted as pixels."""
    local, spec = input.local, input.spec
    if not local.numel():  # the pooling inside refuses some empty tensors
        return TileTensor.wrap(local / 1, spec)  # which makes integers floats, as the division inside
    out = F.local_response_norm(local, size, alpha, beta, k)
    return TileTensor.wrap(as_on_whole(out, spec, F.local_response_norm, (input, size)), spec)


_INSTANCE = "weight bias running_mean running_var use_input_stats momentum eps"
rules((torch.group_norm,), group_norm, "num_groups weight bias eps")(other_form)
rules((torch.instance_norm,), instance_norm, _INSTANCE)(other_form)


# ------------------------------------------------------------------------------------------------------ layer and RMS


class _Normalise(Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias over `dims` (negative), all spatial ones among them.

    The parameters broadcast against x.
    """

    @staticmethod
    def forward(
        ctx: Any, local: Tensor, weight: Tensor | None, bias: Tensor | None, dims: Dims, eps: float, spec: TileSpec
    ) -> Tensor:
        mean, variance = moments(owned_part(local, spec), dims, spec)
        scale = torch.rsqrt(variance + eps)
        ctx.dims, ctx.spec, ctx.eps = dims, spec, eps
        ctx.save_for_backward(local, weight, bias, mean, scale)
        gain = scale if weight is None else scale * weight
        offset = -mean * gain if bias is None else bias - mean * gain
        return torch.addcmul(offset, local, gain).to(local.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        local, weight, bias, mean, scale = ctx.saved_tensors
        spec, dims, wanted = ctx.spec, ctx.dims, ctx.needs_input_grad
        if torch.is_grad_enabled():

            def written(local: Tensor, *params: Tensor | None) -> Tensor:
                return affine(normalised(local, spec, dims, ctx.eps), *params)

            return *with_graph(written, (local, weight, bias), wanted, grad), None, None, None
        wide = grad.to(mean.dtype)
        normal = (local - mean) * scale
        grad_weight = (wide * normal).sum_to_size(weight.shape).to(weight.dtype) if wanted[1] else None
        grad_bias = wide.sum_to_size(bias.shape).to(bias.dtype) if wanted[2] else None
        grad_local = None
        if wanted[0]:
            inner = wide if weight is None else wide * weight
            # All held pixels are normalised, so all their gradients reach the statistics, made of owned pixels only.
            sums = torch.stack([inner.sum(dims, keepdim=True), (inner * normal).sum(dims, keepdim=True)])
            whole = spec.whole_shape(tuple(local.shape))
            total = spec.exchanger.all_reduce(sums) * (scale / prod(whole[d] for d in dims))
            grad_local = inner * scale
            owned_part(grad_local, spec).sub_(torch.addcmul(total[0], owned_part(normal, spec), total[1]))
            grad_local = grad_local.to(local.dtype)
        return grad_local, grad_weight, grad_bias, None, None, None


@rule(F.layer_norm, torch.layer_norm)
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> TileTensor:
    x = _normalised_over(F.layer_norm, input, normalized_shape, weight, bias)
    spec, dims = x.spec, tuple(range(-len(normalized_shape), 0))
    if not any(cut_within(x, d) for d in dims):
        weight, bias = (None if p is None else part_of(p, spec) for p in (weight, bias))
        local = x.local
        shape = local.shape[-len(normalized_shape) :]
        if prod(shape) == 0:  # an empty tile's
            return TileTensor.wrap(_of_nothing(local, weight, bias), spec)
        out = F.layer_norm(local, shape, weight, bias, eps)
        return TileTensor.wrap(as_on_whole(out, spec, _plain, (x, len(shape))), spec)
    if not set(spec.dims) <= set(dims):  # rows that several ranks share
        return on_whole(lambda whole: F.layer_norm(whole, tuple(normalized_shape), weight, bias, eps), x)
    weight, bias = (None if p is None else part_of(p, spec) for p in (weight, bias))
    out = _Normalise.apply(_as_autocast(x.local).contiguous(), weight, bias, dims, eps, spec)
    return TileTensor.wrap(as_on_whole(out, spec, _plain, (x, len(dims))), spec)


def _plain(whole: Tensor, count: int) -> Tensor:
    return F.layer_norm(whole, whole.shape[-count:])


def _normalised_over(function: Any, input: Any, shape: Sequence[int], *parameters: Tensor | None) -> TileTensor:
    _check_plain(function, input, *parameters)
    if not isinstance(input, TileTensor):
        raise untiled(function, (input, shape, *parameters), why="its input is not tiled but another argument is")
    if tuple(input.shape[-len(shape) :]) != tuple(shape):
        raise ValueError(f"normalized_shape {tuple(shape)} must be the last dims of the input {tuple(input.shape)}")
    return input


@rule(F.rms_norm, torch.rms_norm)
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> TileTensor:
    x = _normalised_over(F.rms_norm, input, normalized_shape, weight)
    dims = tuple(range(-len(normalized_shape), 0))
    if not set(x.spec.dims) & set(dims):
        weight = None if weight is None else for_tiles(weight, x.spec.exchanger)
        out = F.rms_norm(x.local, tuple(normalized_shape), weight, eps)
        return TileTensor.wrap(as_on_whole(out, x.spec, _plain_rms, (x, len(dims), weight is not None)), x.spec)
    if not set(x.spec.dims) <= set(dims):
        return on_whole(lambda whole: F.rms_norm(whole, tuple(normalized_shape), weight, eps), x)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    wide = x.float() if x.dtype in LOW_PRECISION else x
    out = (wide * torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps)).to(x.dtype)
    out = out if weight is None else out * weight
    assert isinstance(out, TileTensor)
    return TileTensor.wrap(in_format_of(out.local, x.local), out.spec)


def _plain_rms(whole: Tensor, count: int, weighted: bool) -> Tensor:
    shape = whole.shape[-count:]
    return F.rms_norm(whole, shape, whole.new_ones(shape) if weighted else None)


@rule(F.normalize)
def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    return input / input.norm(p, dim, keepdim=True).clamp_min(eps)
