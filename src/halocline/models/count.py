"""What can be said of a model by running its layers on tensors without data, so that neither memory nor time grows with
the model or the image: `count` its parameters and what a sample makes each layer keep for the backward, the `work` that
each layer does, and what its last layer has for an `answer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.func import functional_call
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from halocline.models.model import Layer, Model

_SAMPLES = 2
"""BatchNorm in training refuses one sample of one pixel."""

# -- parameters and activations ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerCount:
    """What one layer has and keeps."""

    name: str
    parameters: int
    activation_bytes: int | None
    """None where it was not asked for."""


@dataclass(frozen=True)
class Count:
    """A whole model."""

    layers: tuple[LayerCount, ...]
    parameters: int
    """Tied parameters are one parameter; in `layers` the first of them is counted."""

    @property
    def activation_bytes(self) -> int | None:
        found = [layer.activation_bytes for layer in self.layers if layer.activation_bytes is not None]
        return sum(found) if len(found) == len(self.layers) else None


def count(
    model: Model,
    image: tuple[int, int] | None = None,
    activations: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Count:
    """Parameters, and activation bytes of one sample at an image size (left out: the model's own) or its sequence.

    Counts a storage once, in the layer that first keeps it; parameters and buffers are not activations. bfloat16 is
    autocast over float32 parameters. Neither the loss is counted nor what a layer needs only while it runs.
    """
    # Fake tensors know which kernels a real device would choose, and with them what is kept; to count parameters the
    # meta device is enough, and quicker.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode if activations else torch.device("meta"):
        layers = [(name, build(layer)) for name, layer in named(model.layers)]
        kept = _activations(model, layers, image, mode, dtype) if activations else [None] * len(layers)
    sizes = _parameters(layers, {second for _, second in model.tied})
    rows = tuple(LayerCount(name, size, held) for (name, _), size, held in zip(layers, sizes, kept))
    return Count(rows, sum(sizes))


def named(layers: nn.Sequential | Sequence[Layer]) -> list[tuple[str, Layer]]:
    if isinstance(layers, nn.Sequential):
        return list(zip(layers._modules, layers))  # named_children would leave out a layer that is there twice
    return [(str(number), layer) for number, layer in enumerate(layers)]


def build(layer: Layer) -> nn.Module:
    if isinstance(layer, nn.Module):
        return layer
    try:
        return layer()
    except (DataDependentOutputException, DynamicOutputShapeException):
        # It looks at values while it is made (a linspace turned into numbers, say): build it with data.
        with unset_fake_temporarily():
            return layer()


def _parameters(layers: Sequence[tuple[str, nn.Module]], repeated: set[str]) -> list[int]:
    """Of each layer, those that no layer before it has: the same tensor, or tied to one of it by name."""
    seen: set[int] = set()
    sizes = []
    for name, layer in layers:
        size = 0
        for key, parameter in layer.named_parameters():
            if f"{name}.{key}" not in repeated and id(parameter) not in seen:
                seen.add(id(parameter))
                size += parameter.numel()
        sizes.append(size)
    return sizes


def _activations(
    model: Model,
    layers: Sequence[tuple[str, nn.Module]],
    image: tuple[int, int] | None,
    mode: FakeTensorMode,
    dtype: torch.dtype,
) -> list[int | None]:
    states = [state_of(layer, mode, dtype) for _, layer in layers]
    try:
        return [*_kept(model, layers, states, image, 1, dtype)]
    except _OneValue:
        return [-(-size // _SAMPLES) for size in _kept(model, layers, states, image, _SAMPLES, dtype)]


class _OneValue(Exception):
    """A norm was given a single value per channel."""


def state_of(layer: nn.Module, mode: FakeTensorMode, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters and buffers without data, also of a layer that was built with data."""
    found = {key: t if isinstance(t, FakeTensor) else mode.from_tensor(t) for key, t in _tensors_of(layer)}
    return {key: doubled(t, dtype) for key, t in found.items()}


def doubled(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """In float64 where that is what computes."""
    if dtype is not torch.float64 or not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def autocast(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Around a layer's forward without data."""
    return torch.autocast("cpu", dtype) if dtype is torch.bfloat16 else nullcontext()


def _kept(
    model: Model,
    layers: Sequence[tuple[str, nn.Module]],
    states: Sequence[dict[str, Tensor]],
    image: tuple[int, int] | None,
    samples: int,
    dtype: torch.dtype,
) -> Iterator[int]:
    """Layer by layer, the bytes that autograd keeps for the backward."""
    seen: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice
    for state in states:
        for tensor in state.values():
            storage = tensor.untyped_storage()
            seen[storage._cdata] = storage
    found = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal found
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen[storage._cdata] = storage
            found += storage.nbytes()
        return tensor

    inputs = [doubled(torch.empty(t.shape, dtype=t.dtype), dtype) for t in model.inputs(samples, image)]
    value = _given(inputs)
    for (name, layer), state in zip(layers, states):
        found = 0
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast(dtype):
            try:
                value = functional_call(layer, state, (value,), tie_weights=False)
            except ValueError as error:
                if samples == 1 and "more than 1 value per channel" in str(error):
                    raise _OneValue from error
                raise
            except (RuntimeError, TypeError, NotImplementedError) as error:
                where = f"{samples} x {' x '.join(str(n) for n in inputs[0].shape[1:])}"
                raise ValueError(
                    f"layer {name} of {model.name} fails on an input of {where} without data: {error}: give another "
                    f"image size, or leave its activation memory out"
                ) from error
        yield found


# -- work ----------------------------------------------------------------------------------------------------------


class LayerWork(NamedTuple):
    """What one layer has, does and hands on, for one sample."""

    parameters: int
    """Of a tied parameter each layer has its own copy."""
    flops: int
    output_bytes: int
    """In float32."""


def work(model: Model, image: tuple[int, ...] | None = None) -> tuple[LayerWork, ...]:
    """Of each layer, at an image size (left out: the model's own) or its sequence.

    Operations are those of matrix products and convolutions (a multiplication and an addition are two), which are
    nearly all; a backward takes twice as many.
    """
    value = _given(model.inputs(_SAMPLES, None if image is None else (image[0], image[1])))
    found = []
    with torch.device("meta"), torch.no_grad():
        for number, layer in enumerate(model.layers):
            module = build(layer)
            with FlopCounterMode(display=False) as counter:
                try:
                    value = _on_meta(module, value)
                except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
                    raise ValueError(
                        f"layer {number} of {model.name} cannot be run without data ({' '.join(str(error).split())}), "
                        f"so its operations cannot be counted: use a partition method that does not need them"
                    ) from error
            handed_on = sum(t.numel() * t.element_size() for t in tree_leaves(value) if isinstance(t, Tensor))
            parameters = sum(parameter.numel() for parameter in module.parameters())
            found.append(LayerWork(parameters, counter.get_total_flops() // _SAMPLES, handed_on // _SAMPLES))
    return tuple(found)


# -- the answer ----------------------------------------------------------------------------------------------------


def answer(model: Model, image: tuple[int, int] | None = None) -> Any:
    """What the last layer returns for two samples; None where the layers cannot run without data, or not on images of
    this size (left out: the model's own)."""
    value = _given(model.inputs(_SAMPLES, image))
    try:
        with torch.device("meta"), torch.no_grad():
            for layer in model.layers:
                value = _on_meta(build(layer), value)
    except Exception:  # a layer of anyone's may raise anything; on data it will say so itself
        return None
    return value


def shape_of(value: Any) -> str:
    """In words, for messages."""
    if isinstance(value, Tensor):
        return " x ".join(map(str, value.shape[1:])) or "one number"
    return f"a {type(value).__name__}"


# -- running without data ------------------------------------------------------------------------------------------


def _given(inputs: Sequence[Tensor]) -> Any:
    """What the first layer takes."""
    return inputs[0] if len(inputs) == 1 else tuple(inputs)


def _on_meta(module: nn.Module, value: Any) -> Any:
    state = {name: t.to("meta") for name, t in _tensors_of(module)}
    return functional_call(module, state, (value,), tie_weights=False)


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, those of a module that has two names under the first of them: functional_call exchanges
    tensors name by name, and puts none back that it has exchanged twice."""
    for path, part in module.named_modules():
        yield from part.named_parameters(path, recurse=False)
        yield from part.named_buffers(path, recurse=False)
