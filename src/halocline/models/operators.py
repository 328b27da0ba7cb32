"""The operators that a model's layers run, forward and backward, found without data: what each computes and moves.

operators(model, image, samples=4, dtype=torch.bfloat16)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from halocline.models.count import autocast, build, doubled, named, state_of
from halocline.models.model import CAUSAL, CLASSIFICATION, MASKED, SEGMENTATION, SPANS, Model

_FREE = {"_unsafe_view", "device", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach"}
"""Operators that move nothing, beside views."""
_LOOKUP = {"embedding", "index", "gather", "index_select"}
"""Operators that read of their first tensor no more than they return."""
PRODUCT, UNALIGNED, CONVOLUTION, ATTENTION, NORM, OTHER = (
    "product",
    "unaligned product",
    "convolution",
    "attention",
    "norm",
    "other",
)
"""What an operator is, as far as its speed depends on it: a product of 16-bit numbers is unaligned where a size is no
multiple of 8, and norms are those over a batch."""
_FUSED = "_scaled_dot_product_flash_attention_for_cpu"
_ATTENTION = {_FUSED: 2, f"{_FUSED}_backward": 5}
"""Matrix products of scores in fused attention that torch does not count."""


class Operator(NamedTuple):
    """What one operator does."""

    kind: str
    flops: int
    """Of matrix products, convolutions and attention; a multiplication and an addition are two."""
    bytes: int
    """Read and written."""


class LayerOperators(NamedTuple):
    """What one layer has, runs for a microbatch, in order, and hands on."""

    parameters: int
    """Of a tied parameter each layer has its own copy."""
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    """With adding its parameters' gradients to those of earlier microbatches."""
    output_bytes: int

    @property
    def flops(self) -> int:
        """Of the forward."""
        return sum(operator.flops for operator in self.forward)


def operators(
    model: Model, image: tuple[int, int] | None = None, samples: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[LayerOperators, ...]:
    """Of each layer for so many samples, at an image size (left out: the model's own) or its sequence; the loss
    belongs to the last. bfloat16 is autocast over float32 parameters."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        layers = [(name, build(layer)) for name, layer in named(model.layers)]
        inputs = [doubled(torch.empty(t.shape, dtype=t.dtype), dtype) for t in model.inputs(samples, image)]
        value: Any = inputs[0] if len(inputs) == 1 else tuple(inputs)
        found = []
        for number, (name, layer) in enumerate(layers):
            last = number == len(layers) - 1
            given = tree_map(_leaf, value)
            state = state_of(layer, mode, dtype)
            try:
                with autocast(dtype), _Recorder() as forward:
                    value = functional_call(layer, state, (given,), tie_weights=False)
                    end = loss_of(model, value) if last else value
                with _Recorder() as backward:
                    ends = [t for t in tree_leaves(end) if isinstance(t, Tensor) and t.requires_grad]
                    torch.autograd.backward(ends, [torch.empty_like(t) for t in ends])
            except Exception as error:  # a layer of anyone's may raise anything
                raise ValueError(
                    f"layer {name} of {model.name} cannot be run without data ({' '.join(str(error).split())})"
                ) from error
            own = list(layer.parameters())
            added = [Operator(OTHER, 0, 3 * _bytes(parameter)) for parameter in own if parameter.requires_grad]
            size, handed_on = sum(parameter.numel() for parameter in own), sum(map(_bytes, _in(value)))
            found.append(LayerOperators(size, tuple(forward.found), (*backward.found, *added), handed_on))
    return tuple(found)


def _leaf(value: Any) -> Any:
    """What a layer is given. Of images, and of what frozen layers make of them, nobody asks for a gradient."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def loss_of(model: Model, output: Any) -> Any:
    """The loss where the task says what a target looks like; else the output."""
    if not isinstance(output, Tensor):
        return output
    task, shape = model.task, tuple(output.shape)
    if task in (CAUSAL, MASKED, SPANS) and output.ndim == 3:
        target = shape[:2]
    elif task == CLASSIFICATION and output.ndim == 2:
        target = shape[:1]
    elif task == SEGMENTATION and output.ndim == 4:
        target = (shape[0], *shape[2:])
    else:
        return output
    return model.loss(output, output.new_zeros(target, dtype=torch.int64))


class _Recorder(TorchDispatchMode):
    """Notes every operator that reads or writes memory."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Operator] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._overloadpacket.__name__
        if name not in _FREE and not _is_view(func):
            read, written = sum(map(_bytes, _in((args, kwargs)))), sum(map(_bytes, _in(out)))
            if name in _LOOKUP:
                read = min(read, 2 * written)
            kind = _kind(name, _in((args, out)))
            if kind == NORM:
                read *= 2  # for its statistics, and once more
            self.found.append(Operator(kind, _flops(func._overloadpacket, args, kwargs, out), read + written))
        return out


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _kind(name: str, tensors: Iterable[Tensor]) -> str:
    if "attention" in name:
        return ATTENTION
    if "convolution" in name:
        return CONVOLUTION
    if "batch_norm" in name:
        return NORM
    if name not in ("mm", "addmm", "bmm", "baddbmm"):
        return OTHER
    odd = any(t.element_size() == 2 and size % 8 for t in tensors for size in t.shape[-2:])
    return UNALIGNED if odd else PRODUCT


def _flops(operator: Any, args: Any, kwargs: Any, out: Any) -> int:
    if operator in flop_registry:
        return int(flop_registry[operator](*args, **kwargs, out_val=out))
    if (products := _ATTENTION.get(operator.__name__)) is None:
        return 0
    query, key = [t for t in _in((args, kwargs)) if t.ndim == 4][products == 5 :][:2]
    return products * 2 * math.prod(query.shape) * key.shape[-2]


def _in(values: Any) -> Iterable[Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, Tensor))


def _bytes(tensor: Tensor) -> int:
    """A tensor that repeats itself is read once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
