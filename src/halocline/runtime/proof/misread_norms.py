"""Which norms of a model torch misreads while it runs.

torch's CPU kernel for the gradient of batch norm, which instance norm uses as well, takes a tensor for one in another
memory format where its strides fit two of them: a batch of one sample, an image of one row or column. Whether it does
so is asked of the kernel itself, with whole numbers that lie in memory as a norm's input and its gradient do: what it
makes of those is exact or wrong. Knows nothing of tiles, whose rules give the kernel tensors that it reads right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

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
        self._named = {m: ".".join(filter(None, (n, key))) for n, layer in layers for key, m in layer.named_modules()}
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
def misread(shape: Sequence[int], strides: Sequence[int], grad_strides: Sequence[int]) -> bool:
    """Whether the kernel misreads an input and a gradient of this shape with these strides."""
    generator = torch.Generator().manual_seed(0)

    def whole_numbers(strides: Sequence[int]) -> Tensor:
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
