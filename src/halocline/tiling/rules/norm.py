"""Batch normalisation with the statistics of the whole image, SyncBatchNorm included.

Statistics are over owned pixels only; the normalisation acts on all the pixels held. One collective in the forward and
one in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.constant import constant
from halocline.tiling.function import Function
from halocline.tiling.plain import all_for_tiles
from halocline.tiling.spec import TileSpec
from halocline.tiling.statistics import LOW_PRECISION, local_moments, merge, owned_part, owned_pixels
from halocline.tiling.strides import CHANNELS_LAST, definite, with_definite_gradient
from halocline.tiling.tensor import TileTensor, find_tiles, rule, rules, untiled
from halocline.tiling.whole_order import as_on_whole

Running = tuple[Tensor | None, Tensor | None, float]
"""Running mean, running variance and momentum."""


def channel_moments(owned: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of this rank's pixels per channel, in at least float32; zeros where it has none."""
    if owned.numel() and not owned.is_cuda and owned.dtype not in LOW_PRECISION:
        return torch.batch_norm_update_stats(owned, None, None, 0.0)  # the CPU kernel of plain training
    mean, variance = local_moments(owned, (0, *range(2, owned.ndim)))
    return mean.flatten(), variance.flatten()


def update_running(running: Running, mean: Tensor, variance: Tensor, count: int) -> None:
    """Move the running statistics towards those of the batch, whose variance is biased and over `count` values."""
    running_mean, running_var, momentum = running
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((variance * (count / (count - 1))).to(running_var.dtype), momentum)


def subtract_line(grad: Tensor, local: Tensor, slope: Tensor, offset: Tensor, spec: TileSpec) -> None:
    """Subtract slope * local + offset from the gradient of the owned pixels: what reaches them through statistics."""
    owned, target = owned_part(local, spec), owned_part(grad, spec)
    if target.dtype == slope.dtype:
        target.addcmul_(owned, slope, value=-1).sub_(offset)  # without a temporary
    else:
        target.sub_(torch.addcmul(offset, owned, slope))


def given_backward(
    grad: Tensor, local: Tensor, weight: Tensor, mean: Tensor, variance: Tensor, eps: float, wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of batch norm with given statistics: of its input, if wanted, its weight and its bias."""
    weight, mean, variance = weight.contiguous(), mean.contiguous(), variance.contiguous()
    scale = torch.rsqrt(variance + eps)
    return torch.ops.aten.native_batch_norm_backward(
        definite(grad), definite(local), weight, mean, variance, mean, scale, False, eps, [wanted, True, True]
    )


class _Training(NamedTuple):
    """All of a batch norm in training but its tensors."""

    running: Running
    eps: float
    values: int
    """How many there are per channel in the whole batch."""
    spec: TileSpec


class _BatchNorm(Function):
    """Batch normalisation in training, with torch's kernels for given statistics and the rest by hand."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, weight: Tensor | None, bias: Tensor | None, how: _Training) -> Tensor:
        mean, variance = merge(*channel_moments(owned_part(local, how.spec)), how.spec)
        update_running(how.running, mean, variance, how.values)
        ctx.how = how
        ctx.save_for_backward(local, weight, bias, mean, variance)
        # The kernels want the parameters in the dtype of the statistics.
        weight, bias = in_dtype(mean.dtype, weight, bias)
        return F.batch_norm(local, mean, variance, weight, bias, False, 0.0, how.eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *given, mean, variance = ctx.saved_tensors
        wanted, how, local = ctx.needs_input_grad, ctx.how, given[0]
        if torch.is_grad_enabled():
            return *_gradients_with_graph(ctx, grad, given), None
        # As if the statistics were given: grad_local = grad * gain, and the sums that their gradients need anyway.
        scale = torch.rsqrt(variance + how.eps)
        # Without a weight the GPU's kernel makes no sums.
        weight = torch.ones_like(mean) if given[1] is None else given[1].to(mean.dtype)
        if local.numel():
            grad_local, grad_weight, grad_bias = given_backward(grad, local, weight, mean, variance, how.eps, wanted[0])
        else:  # the kernel divides by the number of samples
            grad_local, grad_weight, grad_bias = torch.zeros_like(local), *torch.zeros_like(mean.expand(2, -1))
        sums = how.spec.exchanger.all_reduce(torch.stack([grad_bias, grad_weight]))
        if wanted[0]:
            # All held pixels are normalised, so all their gradients reach the statistics, made of owned pixels only.
            total = sums / how.values
            gain = scale * weight
            along = [1, -1] + [1] * (local.ndim - 2)
            slope = (gain * scale * total[1]).view(along)
            offset = (gain * total[0]).view(along) - slope * mean.view(along)
            subtract_line(grad_local, local, slope, offset, how.spec)
        return (
            grad_local if wanted[0] else None,
            sums[1].to(given[1].dtype) if wanted[1] else None,
            sums[0].to(given[2].dtype) if wanted[2] else None,
            None,
        )


def _gradients_with_graph(ctx: Any, grad: Tensor, given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradients of (local, weight, bias) as functions of all they depend on, by a norm in elementary operations."""

    def run(local: Tensor, *params: Tensor | None) -> Tensor:
        normal = normalised(local, ctx.how.spec, (0, *range(2, local.ndim)), ctx.how.eps)
        return by_channel(normal, *all_for_tiles(params, ctx.how.spec.exchanger))

    return with_graph(run, given, ctx.needs_input_grad, grad)


def in_dtype(dtype: torch.dtype, *params: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if p is None else p.to(dtype) for p in params)


def normalised(local: Tensor, spec: TileSpec, dims: tuple[int, ...], eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over `dims`, all spatial ones among them, in elementary operations of tiles."""
    x = TileTensor.wrap(local, spec)
    centred = x - x.mean(dims, keepdim=True)
    out = centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)
    assert isinstance(out, TileTensor)
    return out.local


def affine(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    out = normal if weight is None else normal * weight
    return out if bias is None else out + bias


def by_channel(normal: Tensor, *params: Tensor | None) -> Tensor:
    """Times a weight and plus a bias per channel, dim 1."""
    along = [1, -1] + [1] * (normal.ndim - 2)
    return affine(normal, *(None if p is None else p.view(along) for p in params))


def with_graph(
    run: Callable[..., Tensor], given: Sequence[Tensor | None], wanted: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of what `run` makes of the tensors given, where wanted, as functions of all they depend on."""
    asked = [t for t, w in zip(given, wanted) if w]
    found = iter(torch.autograd.grad(run(*given), asked, grad, create_graph=True))  # type: ignore[arg-type]
    return [next(found) if w else None for _, w in zip(given, wanted)]


def values_per_rank(spec: TileSpec, count: int) -> list[int]:
    """By rank, how many of the `count` values of a channel it owns: dims that are not cut count in full everywhere."""
    return [count * n // prod(spec.size) for n in owned_pixels(spec)]


@constant
def _counts(spec: TileSpec, count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The ranks that own pixels, how many values per channel each has, and the same for all ranks, as kernels want."""
    counts = values_per_rank(spec, count)
    ranks = [r for r, n in enumerate(counts) if n]
    return (
        torch.tensor(ranks, device=device),
        torch.tensor([counts[r] for r in ranks], dtype=torch.float32, device=device),
        torch.tensor(counts, dtype=torch.int32, device=device),
    )


class _BatchNormCuda(Function):
    """Batch normalisation in training on a GPU, when no margin is held: as many passes over memory as the plain one."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, weight: Tensor | None, bias: Tensor | None, how: _Training) -> Tensor:
        running, eps, count, spec = how
        given, local = local, _dense(local)
        ranks, counts, _ = _counts(spec, count, local.device)
        wide = torch.float32 if local.dtype in LOW_PRECISION else local.dtype
        channels = local.shape[1]
        if local.numel():
            mine = torch.cat(torch.batch_norm_stats(local, eps))
        else:
            mine = torch.zeros(2 * channels, dtype=wide, device=local.device)
        parts = spec.exchanger.all_gather(mine)
        if len(ranks) < len(parts):
            parts = parts[ranks]
        means, scales = parts.chunk(2, 1)
        running_mean, running_var, momentum = running
        # The kernel counts in the running statistics' dtype. bfloat16 is too coarse for that: those are updated here.
        kept = running_mean is None or running_mean.dtype == wide
        mean, scale = torch.batch_norm_gather_stats_with_counts(
            means,
            means,
            scales,
            running_mean if kept else None,
            running_var if kept else None,
            momentum,
            eps,
            counts if wide is torch.float32 else counts.to(wide),
        )
        if not kept:
            update_running(running, mean, scale.pow(-2) - eps, count)
        ctx.how = how
        ctx.save_for_backward(given, weight, bias, local, mean, scale)
        if not local.numel():
            return torch.empty_like(local)
        return torch.batch_norm_elemt(local, weight, bias, mean, scale, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *given, local, mean, scale = ctx.saved_tensors
        wanted, weight = ctx.needs_input_grad, given[1]
        if torch.is_grad_enabled():
            return *_gradients_with_graph(ctx, grad, given), None
        if local.numel():
            grad = _dense(grad, local)
            sums, centred, *_ = torch.batch_norm_backward_reduce(grad, local, mean, scale, weight, True, False, False)
        else:
            sums = centred = torch.zeros_like(mean)
        sums, centred = ctx.how.spec.exchanger.all_reduce(torch.cat((sums, centred))).chunk(2)
        grad_local: Tensor | None = None
        if wanted[0]:
            if local.numel():
                counts = _counts(ctx.how.spec, ctx.how.values, local.device)[2]
                grad_local = torch.batch_norm_backward_elemt(grad, local, mean, scale, weight, sums, centred, counts)
            else:
                grad_local = torch.empty_like(local)
        grad_weight = (centred * scale).to(given[1].dtype) if wanted[1] else None
        grad_bias = sums.to(given[2].dtype) if wanted[2] else None
        return grad_local, grad_weight, grad_bias, None


def _dense(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Contiguous in one of the two memory formats that the GPU kernels read fast: its own, or that of `like`."""
    like = tensor if like is None else like
    last = CHANNELS_LAST.get(like.ndim)
    if last is not None and like.is_contiguous(memory_format=last):
        return definite(tensor.contiguous(memory_format=last))
    return definite(tensor.contiguous())


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
    given = (input, running_mean, running_var, weight, bias)
    if not isinstance(input, TileTensor) or len(find_tiles(given)) > 1:
        raise untiled(F.batch_norm, given, why="its weight, bias and statistics must be plain")
    if 1 - input.ndim in input.spec.dims:
        raise untiled(F.batch_norm, given, why="its channels, dim 1, must not be cut")
    spec, local = input.spec, input.local
    whole = input.shape
    count = whole[0] * prod(whole[2:])
    if training and count == 1:
        raise ValueError(f"batch normalisation needs more than 1 value per channel to train, got {tuple(whole)}")
    if not training or spec.exchanger.size == 1 or not count:
        weight, bias = all_for_tiles((weight, bias), spec.exchanger)
        out = F.batch_norm(definite(local), running_mean, running_var, weight, bias, training, momentum, eps)
        return TileTensor.wrap(with_definite_gradient(as_on_whole(out, spec, _plain, (input,))), spec)
    norm = _BatchNormCuda if local.is_cuda and spec.bare else _BatchNorm
    out = norm.run(local, weight, bias, _Training((running_mean, running_var, momentum), eps, count, spec))
    return TileTensor.wrap(as_on_whole(out, spec, _plain, (input,)), spec)


def _plain(whole: Tensor) -> Tensor:
    channels = whole.shape[1]
    return F.batch_norm(whole, whole.new_zeros(channels), whole.new_ones(channels))


def other_form(function: Any, run: Callable[..., Any], names: str, input: Tensor, *args: Any) -> Any:
    """The form of a norm in which torch's own code calls it: `names` follow the input, in another order than in `run`,
    whose results do not depend on the `cudnn_enabled` that comes last."""
    return run(input, **dict(zip(names.split(), args)))


rules((torch.batch_norm,), batch_norm, "weight bias running_mean running_var training momentum eps")(other_form)
