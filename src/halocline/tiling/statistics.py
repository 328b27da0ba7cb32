"""Mean and variance over the pixels of all ranks, merged from each rank's own without cancellation.

Statistics are over owned pixels only, so that a margin changes nothing, and in at least float32.
Knows tiles' specs and collectives; nothing of normalisation.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.boxes import shape, slices
from halocline.tiling.constant import constant
from halocline.tiling.function import Function
from halocline.tiling.plain import for_tiles
from halocline.tiling.route import Index, index
from halocline.tiling.spec import TileSpec

Dims = tuple[int, ...]
LOW_PRECISION = (torch.float16, torch.bfloat16)


@lru_cache(maxsize=4096)
def owned_index(spec: TileSpec) -> Index:
    """Where the owned pixels lie among those held."""
    return index(slices(spec.box, spec.held), spec.dims)


def owned_part(local: Tensor, spec: TileSpec) -> Tensor:
    """The owned pixels of a tensor over the held box."""
    return local if spec.bare else local[owned_index(spec)]


def owned_pixels(spec: TileSpec) -> Dims:
    """By rank, how many pixels it owns."""
    return tuple(prod(shape(box)) for box in spec.own)


@constant
def _shares(spec: TileSpec, dtype: torch.dtype, device: torch.device) -> Tensor:
    """By rank, the part of the image that it owns. Cached, as a copy to a GPU at each call would stall it."""
    return torch.tensor([n / prod(spec.size) for n in owned_pixels(spec)], dtype=dtype, device=device)


def merge(mean: Tensor, variance: Tensor, spec: TileSpec) -> tuple[Tensor, Tensor]:
    """The mean and the biased variance over all ranks' owned pixels, from each rank's own, in one collective.

    Merged as Chan, Golub and LeVeque (1979) do: no difference of large squares, so nothing cancels.
    """
    if spec.exchanger.size == 1:
        return mean, variance
    parts = spec.exchanger.all_gather(torch.stack([mean, variance]))
    means, variances = parts.unbind(1)
    shares = _shares(spec, mean.dtype, mean.device).view(-1, *(1,) * mean.ndim)
    mean = (means * shares).sum(0)
    return mean, ((variances + (means - mean).square()) * shares).sum(0)


def local_moments(owned: Tensor, dims: Dims) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of this rank's pixels over `dims`, which are kept; zeros where it has none."""
    wide = owned.float() if owned.dtype in LOW_PRECISION else owned
    if not owned.numel():
        zeros = wide.sum(dims, keepdim=True)
        return zeros, zeros
    variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    return mean, variance


def moments(owned: Tensor, dims: Dims, spec: TileSpec) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over `dims`, all spatial ones among them, and over all ranks; the dims are kept."""
    return merge(*local_moments(owned, dims), spec)


class Moments(Function):
    """`moments`, differentiable: (mean, variance), each plain, whole and equal on every rank."""

    @staticmethod
    def forward(ctx: Any, owned: Tensor, dims: Dims, spec: TileSpec) -> tuple[Tensor, Tensor]:
        mean, variance = moments(owned, dims, spec)
        whole = spec.whole_shape(tuple(owned.shape))
        ctx.count, ctx.spec = prod(whole[d] for d in dims), spec
        ctx.save_for_backward(owned, mean)
        return mean, variance

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        owned, mean = ctx.saved_tensors
        mean, grad_mean, grad_variance = (for_tiles(t, ctx.spec.exchanger) for t in (mean, grad_mean, grad_variance))
        grad = (grad_mean + (owned - mean) * (2 * grad_variance)) / ctx.count
        return grad.to(owned.dtype), None, None
