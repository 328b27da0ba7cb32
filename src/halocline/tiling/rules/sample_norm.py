"""Normalisation within each sample: group, instance, layer, RMS and local response norm, and F.normalize.

Over channels alone it acts on each pixel held; over pixels, its statistics are those of the whole image's owned
pixels. One collective in the forward and one in the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.rules.gathered import cut_within, on_whole
from halocline.tiling.rules.norm import update_running
from halocline.tiling.spec import TileSpec
from halocline.tiling.statistics import Dims, moments, owned_part
from halocline.tiling.tensor import TileTensor, rule, untiled


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias over `dims` (negative), all spatial ones among them.

    Returns the batch's mean and biased variance as well, not differentiable, for running statistics. The parameters
    broadcast against x.
    """

    @staticmethod
    def forward(
        ctx: Any, local: Tensor, weight: Tensor | None, bias: Tensor | None, dims: Dims, eps: float, spec: TileSpec
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = moments(owned_part(local, spec), dims, spec)
        scale = torch.rsqrt(variance + eps)
        ctx.dims, ctx.spec, ctx.bias = dims, spec, None if bias is None else (bias.shape, bias.dtype)
        ctx.save_for_backward(local, weight, mean, scale)
        gain = scale if weight is None else scale * weight
        offset = -mean * gain if bias is None else bias - mean * gain
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(offset, local, gain).to(local.dtype), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        local, weight, mean, scale = ctx.saved_tensors
        spec, dims, wanted = ctx.spec, ctx.dims, ctx.needs_input_grad
        wide = grad.to(mean.dtype)
        normal = (local - mean) * scale
        grad_weight = (wide * normal).sum_to_size(weight.shape).to(weight.dtype) if wanted[1] else None
        grad_bias = wide.sum_to_size(ctx.bias[0]).to(ctx.bias[1]) if wanted[2] else None
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


def _as_autocast(local: Tensor) -> Tensor:
    """On GPUs autocast runs group and layer norm in float32."""
    if local.is_cuda and torch.is_autocast_enabled("cuda") and local.dtype is not torch.float64:
        return local.float()
    return local


def _check(function: Any, input: Any) -> TileTensor:
    if not isinstance(input, TileTensor) or min(input.spec.positions(input.ndim)) < 2:
        raise untiled(function, (input,), why="the dims 0 and 1, batch and channels, must not be cut")
    return input


def _along_channels(parameter: Tensor | None, ndim: int) -> Tensor | None:
    return None if parameter is None else parameter.view(-1, *(1,) * (ndim - 2))


@rule(F.group_norm)
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> TileTensor:
    x = _check(F.group_norm, input)
    spec, channels = x.spec, x.shape[1]
    if channels % num_groups:
        raise ValueError(f"{channels} channels cannot be split into {num_groups} groups; use a divisor of {channels}")
    if spec.exchanger.size == 1:
        return TileTensor.wrap(F.group_norm(x.local, num_groups, weight, bias, eps), spec)
    groups = _as_autocast(x.local).unflatten(1, (num_groups, -1))
    weight, bias = (None if p is None else p.view(num_groups, -1, *(1,) * (x.ndim - 2)) for p in (weight, bias))
    dims = tuple(range(1 - x.ndim, 0))
    out, _, _ = _Normalise.apply(groups, weight, bias, dims, eps, spec)
    return TileTensor.wrap(out.flatten(1, 2), spec)


@rule(F.instance_norm)
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> TileTensor:
    x = _check(F.instance_norm, input)
    spec = x.spec
    count = prod(x.shape[2:])
    if use_input_stats and count == 1:
        raise ValueError(f"instance normalisation needs more than 1 pixel when training, got {tuple(x.shape)}")
    if not use_input_stats or spec.exchanger.size == 1:
        out = F.instance_norm(x.local, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        return TileTensor.wrap(out, spec)
    weight, bias = _along_channels(weight, x.ndim), _along_channels(bias, x.ndim)
    out, mean, variance = _Normalise.apply(x.local, weight, bias, tuple(range(2 - x.ndim, 0)), eps, spec)
    with torch.no_grad():
        update_running((running_mean, running_var, momentum), mean.mean(0).flatten(), variance.mean(0).flatten(), count)
    return TileTensor.wrap(out, spec)


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
            return TileTensor.wrap(_connected(local, weight, bias), spec)
        return TileTensor.wrap(F.layer_norm(local, shape, weight, bias, eps), spec)
    if not set(spec.dims) <= set(dims):  # rows that several ranks share
        return on_whole(lambda whole: F.layer_norm(whole, tuple(normalized_shape), weight, bias, eps), x)
    weight, bias = (None if p is None else part_of(p, spec) for p in (weight, bias))
    out, _, _ = _Normalise.apply(_as_autocast(x.local), weight, bias, dims, eps, spec)
    return TileTensor.wrap(out, spec)


def _connected(local: Tensor, *parameters: Tensor | None) -> Tensor:
    """An empty result that still depends on its parameters."""
    for p in parameters:
        if p is not None:
            local = local * p
    return local


def _normalised_over(function: Any, input: Any, shape: Sequence[int], *parameters: Tensor | None) -> TileTensor:
    if not isinstance(input, TileTensor) or any(isinstance(p, TileTensor) for p in parameters):
        raise untiled(function, (input, shape, *parameters), why="only its input may be a tile")
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
        return TileTensor.wrap(F.rms_norm(x.local, tuple(normalized_shape), weight, eps), x.spec)
    if not set(x.spec.dims) <= set(dims):
        return on_whole(lambda whole: F.rms_norm(whole, tuple(normalized_shape), weight, eps), x)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    out = (wide * torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps)).to(x.dtype)
    return out if weight is None else out * weight  # type: ignore[return-value]


@rule(F.local_response_norm)
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> TileTensor:
    """Over neighbouring channels of each pixel; dims after the channels are only counted as pixels."""
    x = _check(F.local_response_norm, input)
    if not x.local.numel():  # the pooling inside refuses some empty tensors
        return TileTensor.wrap(x.local * 1, x.spec)
    return TileTensor.wrap(F.local_response_norm(x.local, size, alpha, beta, k), x.spec)


@rule(F.normalize)
def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    if out is not None:
        raise untiled(F.normalize, (input,), why="out= has no rule; assign the result instead")
    return input / input.norm(p, dim, keepdim=True).clamp_min(eps)


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
) -> TileTensor:
    return instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
