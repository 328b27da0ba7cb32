"""Batch and instance norm written out in elementary operations, to hold other computations against.

torch's CPU kernel for their gradient misreads some tensors (see misread_norms), on one device as anywhere. Here they
are what they mean: a mean, a variance, a product and a sum. What torch reads right is left to it: running statistics,
and group, layer and RMS norm, which have kernels of their own. Knows nothing of ranks and tiles: anything but a plain
tensor is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def written_norms() -> AbstractContextManager[Any]:
    """Within it, norms of plain tensors are computed by elementary operations, in the forward and in the backward."""
    return _Written()


class _Written(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = _WRITTEN.get(func)
        input = args[0] if args else kwargs.get("input")
        if written is None or type(input) not in (Tensor, nn.Parameter) or not input.numel():
            return func(*args, **kwargs)
        return written(*args, **kwargs)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    with torch.no_grad():
        torchs = F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    given = None if training else (running_mean, running_var)
    dims = [d for d in range(input.ndim) if d != 1]
    return _laid_out(_normalised(input, given, dims, weight, bias, eps), torchs)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    with torch.no_grad():
        torchs = F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    given = None if use_input_stats else (running_mean, running_var)
    return _laid_out(_normalised(input, given, list(range(2, input.ndim)), weight, bias, eps), torchs)


def _normalised(
    input: Tensor, given: Any, dims: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """With the given mean and variance of each channel, or with those over `dims`."""

    def along(values: Tensor) -> Tensor:
        return _wide(values).view(-1, *(1,) * (input.ndim - 2))

    x = _wide(input)
    if given is None:
        mean, variance = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
    else:
        mean, variance = map(along, given)
    out = (x - mean) * torch.rsqrt(variance + eps)
    out = out if weight is None else out * along(weight)
    return out if bias is None else out + along(bias)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _laid_out(out: Tensor, like: Tensor) -> Tensor:
    """The same values in the dtype and the order in memory of torch's own result, for what is drawn or viewed next."""
    if out.dtype == like.dtype and out.stride() == like.stride():
        return out
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).copy_(out)


def _torch_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _torch_instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return _instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


_WRITTEN: dict[Any, Callable[..., Tensor]] = {
    F.batch_norm: _batch_norm,
    torch.batch_norm: _torch_batch_norm,
    F.instance_norm: _instance_norm,
    torch.instance_norm: _torch_instance_norm,
}
