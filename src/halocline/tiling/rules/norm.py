"""Batch normalisation with the statistics of the whole image: each rank's mean and centred square sum are merged.

Statistics are over owned pixels only; the normalisation acts on all the pixels held. Knows nothing of messages.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from halocline.tiling.boxes import slices
from halocline.tiling.exchanger import Exchanger
from halocline.tiling.route import index
from halocline.tiling.tensor import TileTensor, rule, untiled


def merged_statistics(owned: Tensor, count: int, exchanger: Exchanger) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel (dim 1) over all ranks' `owned` values, `count` in all.

    Merged as Chan, Golub and LeVeque (1979) do: no difference of large squares, so nothing cancels.
    """
    dims = [d for d in range(owned.ndim) if d != 1]
    wide = owned.float() if owned.dtype in (torch.float16, torch.bfloat16) else owned
    mine = owned.numel() // owned.shape[1]
    if mine:
        variance, mean = torch.var_mean(wide, dims, correction=0)
    else:
        mean = variance = wide.new_zeros(owned.shape[1])
    if exchanger.size == 1:
        return mean, variance
    counts = torch.full((1,), float(mine), dtype=mean.dtype, device=mean.device)
    parts = torch.stack(exchanger.all_gather(torch.cat([mean, variance, counts])))
    means, variances, numbers = parts.split([len(mean), len(mean), 1], 1)
    share = numbers / count
    mean = (means * share).sum(0)
    return mean, ((variances + (means - mean).square()) * share).sum(0)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        local: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        own: tuple[Any, ...],
        count: int,
        exchanger: Exchanger,
    ) -> Tensor:
        ctx.own, ctx.count, ctx.exchanger = own, count, exchanger
        ctx.save_for_backward(local, weight, mean, torch.rsqrt(variance + eps))
        return F.batch_norm(local, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        local, weight, mean, scale = ctx.saved_tensors
        dims = [d for d in range(local.ndim) if d != 1]
        along = [1, -1] + [1] * (local.ndim - 2)
        wide = grad.to(mean.dtype)
        centred = local.to(mean.dtype) - mean.view(along)
        sums = torch.stack([wide.sum(dims), (wide * centred).sum(dims)])
        grad_weight = sums[1] * scale if weight is not None and ctx.needs_input_grad[1] else None
        grad_bias = sums[0].clone() if ctx.needs_input_grad[2] else None
        grad_local = None
        if ctx.needs_input_grad[0]:
            # Held pixels are normalised, so all of their gradients reach the statistics, made from owned pixels only.
            total = ctx.exchanger.all_reduce(sums) / ctx.count
            gain = scale if weight is None else scale * weight.to(scale.dtype)
            grad_local = wide * gain.view(along)
            through_mean = (gain * total[0]).view(along)
            through_variance = (gain * scale.square() * total[1]).view(along)
            grad_local[ctx.own] -= through_mean + centred[ctx.own] * through_variance
            grad_local = grad_local.to(local.dtype)
        if weight is not None and grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        if grad_bias is not None and weight is not None:
            grad_bias = grad_bias.to(weight.dtype)
        return grad_local, grad_weight, grad_bias, None, None, None, None, None, None


@rule(F.batch_norm)
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> TileTensor:
    if not isinstance(input, TileTensor) or 1 - input.ndim in input.spec.dims or -input.ndim in input.spec.dims:
        raise untiled(F.batch_norm, (input,), why="its channels, dim 1, must not be cut")
    spec = input.spec
    if not training:
        out = F.batch_norm(input.local, running_mean, running_var, weight, bias, False, momentum, eps)
        return TileTensor.wrap(out, spec)
    count = input.shape[0] * prod(input.shape[2:])
    if count <= 1:
        raise ValueError(f"batch normalisation needs more than 1 value per channel to train, got {tuple(input.shape)}")
    own = index(slices(spec.box, spec.held), spec.dims)
    with torch.no_grad():
        mean, variance = merged_statistics(input.local.detach()[own], count, spec.exchanger)
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * (count / (count - 1))).to(running_var.dtype), momentum)
    out = _BatchNorm.apply(input.local, weight, bias, mean, variance, eps, own, count, spec.exchanger)
    return TileTensor.wrap(out, spec)
