"""Batch and instance norm of plain tensors on one device: which ones torch misreads, and the same written out.

torch's CPU kernel for the gradient of batch norm, which instance norm uses as well, takes a tensor for one in another
memory format where its strides fit two of them: a batch of one sample, an image of one row or column. Whether it does
so is asked of the kernel itself, with whole numbers that lie in memory as a norm's input and its gradient do: what it
makes of those is exact or wrong.

Written out they are what they mean: a mean, a variance, a product and a sum. What torch reads right is left to it:
running statistics, and group, layer and RMS norm, which have kernels of their own. Nothing here knows of ranks or
tiles, whose rules give the kernel tensors that it reads right.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from halocline.runtime.layers import modules_in

_FOLDED = {F.batch_norm: False, torch.batch_norm: False, F.instance_norm: True, torch.instance_norm: True}
"""The functions that end in the kernel, and whether they make its channels of all samples' channels."""


OUTSIDE = "of the loss"
"""The name of what runs in none of the layers."""


class MisreadNorms(TorchFunctionMode):
    """Within it, forwards and backwards of `layers` are watched; `names` are the modules whose norms were misread, as
    they stand in the model."""

    def __init__(self, layers: Iterable[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self.names: list[str] = []
        self._named = {module: name for name, module in modules_in(layers)}
        self._inside = [OUTSIDE]
        """Whose forward runs, the innermost last."""

    def __enter__(self) -> MisreadNorms:
        # Of all modules at once: those that torch.jit made take no hooks of their own.
        self._hooks = [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _begin(self, module: nn.Module, *_: Any) -> None:
        self._inside.append(self._named.get(module, self._inside[-1]))

    def _end(self, *_: Any) -> None:
        self._inside.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in _FOLDED and type(out) is Tensor and out.device.type == "cpu" and out.requires_grad and out.numel():
            input = _without_data(args[0] if args else kwargs["input"])
            out.register_hook(partial(self._read, self._inside[-1], _FOLDED[func], input))
        return out

    def _read(self, name: str, folded: bool, input: Tensor, grad: Tensor) -> None:
        grad = _without_data(grad)
        if folded:
            input, grad = (t.reshape(1, -1, *t.shape[2:]) for t in (input.contiguous(), grad))
        if name not in self.names and misread(tuple(input.shape), input.stride(), grad.stride()):
            self.names = [n for n in (*self._named.values(), OUTSIDE) if n in (name, *self.names)]


def _without_data(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), device="meta")


@lru_cache(maxsize=1024)
def misread(shape: tuple[int, ...], strides: tuple[int, ...], grad_strides: tuple[int, ...]) -> bool:
    """Whether the kernel misreads an input and a gradient of this shape with these strides."""
    generator = torch.Generator().manual_seed(0)

    def whole_numbers(strides: tuple[int, ...]) -> Tensor:
        size = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
        return torch.randint(-8, 9, (size,), generator=generator).double().as_strided(shape, strides)

    x, grad = whole_numbers(strides), whole_numbers(grad_strides)
    zeros, ones = torch.zeros(shape[1], dtype=x.dtype), torch.ones(shape[1], dtype=x.dtype)
    # With a mean of 0, a variance of 1 and a weight of 1: the gradients of the input, of the weight and of the bias.
    found = torch.ops.aten.native_batch_norm_backward(
        grad, x, ones, zeros, ones, zeros, ones, False, 0.0, [True, True, True]
    )
    dims = [d for d in range(len(shape)) if d != 1]
    return not all(map(torch.equal, found, (grad, (grad * x).sum(dims), grad.sum(dims))))


# -- written out ---------------------------------------------------------------------------------------------------

_SIGNATURES: dict[Any, inspect.Signature] = {
    F.batch_norm: inspect.signature(F.batch_norm),
    F.instance_norm: inspect.signature(F.instance_norm),
    torch.batch_norm: inspect.signature(
        lambda input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled: None
    ),
    torch.instance_norm: inspect.signature(
        lambda input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled: None
    ),
}


class WrittenNorms(TorchFunctionMode):
    """Within it, norms of plain tensors are computed by elementary operations, in the forward and in the backward."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        input = args[0] if args else kwargs.get("input")
        if func not in _FOLDED or type(input) not in (Tensor, nn.Parameter) or not input.numel():
            return func(*args, **kwargs)
        call = _SIGNATURES[func].bind(*args, **kwargs)
        call.apply_defaults()
        input, *given, training, momentum, eps = call.args[:8]
        functional: Any = F.instance_norm if _FOLDED[func] else F.batch_norm
        running, affine = (given[:2], given[2:]) if func is functional else (given[2:], given[:2])
        with torch.no_grad():  # for the running statistics and the result's place in memory
            torchs = functional(input, *running, *affine, training, momentum, eps)
        dims = [d for d in range(input.ndim) if d > 1 or (d == 0 and functional is F.batch_norm)]
        return _laid_out(_normalised(input, None if training else running, dims, affine, eps), torchs)


def _normalised(input: Tensor, given: Any, dims: list[int], affine: Any, eps: float) -> Tensor:
    """With the given mean and variance of each channel, or with those over `dims`."""

    def along(values: Tensor) -> Tensor:
        return _wide(values).view(-1, *(1,) * (input.ndim - 2))

    x = _wide(input)
    if given is None:
        mean, variance = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
    else:
        mean, variance = map(along, given)
    weight, bias = affine
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
