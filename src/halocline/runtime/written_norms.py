"""Normalisation written out in elementary operations, to hold other computations against.

torch's own kernels for the gradient of batch norm misread tensors whose strides fit two memory formats (a batch of one
sample, one channel, one pixel), on one device as anywhere. `written_norms()` replaces batch, instance, group and layer
norm by what they mean: a mean, a variance, a product and a sum. Results lie in memory as torch's do, so that what is
drawn or viewed after them is the same. Knows nothing of ranks and tiles: anything but a plain tensor is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_NARROW = (torch.float16, torch.bfloat16)


def written_norms() -> AbstractContextManager[Any]:
    """Within it, norms of plain tensors are computed by elementary operations, in the forward and in the backward."""
    return _Written()


class _Written(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = _WRITTEN.get(func)
        kwargs = kwargs or {}
        input = args[0] if args else kwargs.get("input")
        if written is None or type(input) not in (Tensor, nn.Parameter) or not input.numel():
            return func(*args, **kwargs)
        return written(*args, **kwargs)


def _normalised(input: Tensor, mean: Any, variance: Any, eps: float, weight: Any, bias: Any) -> Tensor:
    """What every norm does with its statistics; all of them broadcast against the input."""
    out = (input - mean) * torch.rsqrt(variance + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _laid_out(out: Tensor, like: Tensor) -> Tensor:
    """The same values in the dtype and the order in memory of torch's own result."""
    if out.dtype == like.dtype and out.stride() == like.stride():
        return out
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).copy_(out)


def _wide(*tensors: Tensor | None) -> list[Any]:
    return [t.float() if t is not None and t.dtype in _NARROW else t for t in tensors]


def _along(values: Tensor | None, ndim: int) -> Tensor | None:
    """A value per channel, or per sample and channel, that broadcasts against (samples, channels, pixels)."""
    if values is None:
        return None
    values = values.unsqueeze(0) if values.ndim == 1 else values
    return values.reshape(*values.shape, *(1,) * (ndim - 2))


def _plain(function: Callable[..., Tensor], input: Tensor, *args: Any) -> Tensor:
    """What torch's own kernel makes, of which only the dtype and the strides are wanted; changes no argument."""
    with torch.no_grad():
        return function(input, *(a.clone() if isinstance(a, Tensor) else a for a in args))


def _update(running: Tensor | None, towards: Tensor, momentum: float) -> None:
    if running is not None:
        with torch.no_grad():
            running.copy_(running * (1 - momentum) + towards.to(running.dtype) * momentum)


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
    like = _plain(F.batch_norm, input, running_mean, running_var, weight, bias, training, momentum, eps)
    x, mean, variance, w, b = _wide(input, running_mean, running_var, weight, bias)
    if training:
        dims = [d for d in range(input.ndim) if d != 1]
        mean, variance = x.mean(dims), x.var(dims, correction=0)
        count = input.numel() // input.shape[1]
        _update(running_mean, mean, momentum)
        _update(running_var, variance * (count / (count - 1)), momentum)
    mean, variance, w, b = (_along(v, input.ndim) for v in (mean, variance, w, b))
    return _laid_out(_normalised(x, mean, variance, eps, w, b), like)


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
    like = _plain(F.instance_norm, input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    x, mean, variance, w, b = _wide(input, running_mean, running_var, weight, bias)
    if use_input_stats:
        dims = list(range(2, input.ndim))
        mean, variance = x.mean(dims), x.var(dims, correction=0)
        count = input[0, 0].numel()
        _update(running_mean, mean.mean(0), momentum)
        _update(running_var, variance.mean(0) * (count / (count - 1)), momentum)
    mean, variance, w, b = (_along(v, input.ndim) for v in (mean, variance, w, b))
    return _laid_out(_normalised(x, mean, variance, eps, w, b), like)


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
    **__: Any,
) -> Tensor:
    like = _plain(F.group_norm, input, num_groups, weight, bias, eps)
    x, w, b = _wide(input, weight, bias)
    grouped = x.unflatten(1, (num_groups, -1))
    dims = list(range(2, grouped.ndim))
    each = input.shape[1] // num_groups
    mean, variance = (
        _along(v.repeat_interleave(each, 1), input.ndim) for v in (grouped.mean(dims), grouped.var(dims, correction=0))
    )
    return _laid_out(_normalised(x, mean, variance, eps, _along(w, input.ndim), _along(b, input.ndim)), like)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
    **__: Any,
) -> Tensor:
    like = _plain(F.layer_norm, input, normalized_shape, weight, bias, eps)
    x, w, b = _wide(input, weight, bias)
    dims = list(range(-len(normalized_shape), 0))
    mean, variance = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
    return _laid_out(_normalised(x, mean, variance, eps, w, b), like)


def _by_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same for torch.batch_norm and torch.instance_norm, which take their parameters first."""

    def written(
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool = True,
    ) -> Tensor:
        return function(input, running_mean, running_var, weight, bias, training, momentum, eps)

    return written


_WRITTEN: dict[Any, Callable[..., Tensor]] = {
    F.batch_norm: _batch_norm,
    torch.batch_norm: _by_place(_batch_norm),
    F.instance_norm: _instance_norm,
    torch.instance_norm: _by_place(_instance_norm),
    F.group_norm: _group_norm,
    torch.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
}
