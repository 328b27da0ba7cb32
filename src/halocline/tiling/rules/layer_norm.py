"""Layer and RMS norm, and F.normalize: over channels on each pixel held, over pixels with those of the whole image.

Statistics are over owned pixels only. One collective in the forward and one in the backward, where pixels are
normalised together; where rows that several ranks share are normalised one by one, the tensor is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.function import Function
from halocline.tiling.plain import for_tiles
from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.rules.gathered import cut_within, on_whole
from halocline.tiling.rules.norm import normalised, with_graph
from halocline.tiling.rules.sample_norm import as_autocast
from halocline.tiling.spec import TileSpec
from halocline.tiling.statistics import Dims, moments, owned_part
from halocline.tiling.strides import in_format_of
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.whole_order import as_on_whole


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
            given, run = (local, weight, bias), partial(_written, dims, ctx.eps, spec)
            return *with_graph(run, given, wanted, grad), None, None, None
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


def _written(
    dims: Dims, eps: float, spec: TileSpec, local: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Layer norm in elementary operations."""
    out = normalised(local, spec, dims, eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


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
        out = F.layer_norm(local, shape, weight, bias, eps)
        return TileTensor.wrap(as_on_whole(out, spec, _plain, (x, len(shape))), spec)
    if not set(spec.dims) <= set(dims):  # rows that several ranks share
        return on_whole(lambda whole: F.layer_norm(whole, tuple(normalized_shape), weight, bias, eps), x)
    weight, bias = (None if p is None else part_of(p, spec) for p in (weight, bias))
    out = _Normalise.apply(as_autocast(x.local).contiguous(), weight, bias, dims, eps, spec)
    return TileTensor.wrap(as_on_whole(out, spec, _plain, (x, len(dims))), spec)


def _plain(whole: Tensor, count: int) -> Tensor:
    return F.layer_norm(whole, whole.shape[-count:])


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
        weight = None if weight is None else for_tiles(weight, x.spec.exchanger)
        out = F.rms_norm(x.local, tuple(normalized_shape), weight, eps)
        return TileTensor.wrap(as_on_whole(out, x.spec, _plain_rms, (x, len(dims), weight is not None)), x.spec)
    if not set(x.spec.dims) <= set(dims):
        return on_whole(lambda whole: F.rms_norm(whole, tuple(normalized_shape), weight, eps), x)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
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
