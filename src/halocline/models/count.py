"""How large a model is: its parameters, and what one training sample makes each layer keep for the backward. Found by
running the layers on tensors without data, so that neither memory nor time grows with the model or the image.

Counts a storage once, in the layer that first keeps it; parameters and buffers are not activations. In float32; neither
the loss is counted nor what a layer needs only while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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

from halocline.models.model import Layer, Model
from halocline.models.tensors import tensors_of


@dataclass(frozen=True)
class LayerCount:
    """One layer."""

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


def count(model: Model, image: tuple[int, int] | None = None, activations: bool = True) -> Count:
    """Parameters, and activation bytes of one sample at an image size (left out: the model's own) or its sequence."""
    # Fake tensors know which kernels a real device would choose, and with them what is kept; to count parameters the
    # meta device is enough, and quicker.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode if activations else torch.device("meta"):
        layers = [(name, _build(layer)) for name, layer in _named(model.layers)]
        kept = _activations(model, layers, image, mode) if activations else [None] * len(layers)
    sizes = _parameters(layers, {second for _, second in model.tied})
    rows = tuple(LayerCount(name, size, held) for (name, _), size, held in zip(layers, sizes, kept))
    return Count(rows, sum(sizes))


def _named(layers: nn.Sequential | Sequence[Layer]) -> list[tuple[str, Layer]]:
    if isinstance(layers, nn.Sequential):
        return list(zip(layers._modules, layers))  # named_children would leave out a layer that is there twice
    return [(str(number), layer) for number, layer in enumerate(layers)]


def _build(layer: Layer) -> nn.Module:
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
    model: Model, layers: Sequence[tuple[str, nn.Module]], image: tuple[int, int] | None, mode: FakeTensorMode
) -> list[int | None]:
    states = [_state(layer, mode) for _, layer in layers]
    try:
        return [*_kept(model, layers, states, image, samples=1)]
    except _OneValue:
        # BatchNorm in training refuses one sample of one pixel. Two samples keep twice as much.
        return [-(-size // 2) for size in _kept(model, layers, states, image, samples=2)]


class _OneValue(Exception):
    """A norm was given a single value per channel."""


def _state(layer: nn.Module, mode: FakeTensorMode) -> dict[str, Tensor]:
    """Parameters and buffers without data, also of a layer that was built with data."""
    return {key: t if isinstance(t, FakeTensor) else mode.from_tensor(t) for key, t in tensors_of(layer)}


def _kept(
    model: Model,
    layers: Sequence[tuple[str, nn.Module]],
    states: Sequence[dict[str, Tensor]],
    image: tuple[int, int] | None,
    samples: int,
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

    inputs = [torch.empty(t.shape, dtype=t.dtype) for t in model.inputs(samples, image)]
    value: Any = inputs[0] if len(inputs) == 1 else tuple(inputs)
    for (name, layer), state in zip(layers, states):
        found = 0
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
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
