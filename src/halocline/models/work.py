"""How much each layer of a model has and does: its parameters, the floating-point operations of a forward and the bytes
it hands on, for one sample. Found by running the layers on tensors without data, so that the largest model is counted
in seconds on any machine.

Operations are those of matrix products and convolutions (a multiplication and an addition are two), which are nearly
all; a backward takes twice as many.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from halocline.models.model import Model
from halocline.models.tensors import tensors_of

_SAMPLES = 2
"""BatchNorm in training refuses one sample of one pixel."""


class LayerWork(NamedTuple):
    """One layer."""

    parameters: int
    """Of a tied parameter each layer has its own copy."""
    flops: int
    output_bytes: int
    """In float32."""


def work(model: Model, image: tuple[int, ...] | None = None) -> tuple[LayerWork, ...]:
    """Of each layer, at an image size (left out: the model's own) or its sequence."""
    inputs = model.inputs(_SAMPLES, None if image is None else (image[0], image[1]))
    value: Any = inputs[0] if len(inputs) == 1 else tuple(inputs)
    found = []
    with torch.device("meta"), torch.no_grad():
        for number, layer in enumerate(model.layers):
            module = layer if isinstance(layer, nn.Module) else layer()
            state = {name: t.to("meta") for name, t in tensors_of(module)}
            with FlopCounterMode(display=False) as counter:
                try:
                    value = functional_call(module, state, (value,), tie_weights=False)
                except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
                    raise ValueError(
                        f"layer {number} of {model.name} cannot be run without data ({' '.join(str(error).split())}), "
                        f"so its operations cannot be counted: use a partition method that does not need them"
                    ) from error
            handed_on = sum(t.numel() * t.element_size() for t in tree_leaves(value) if isinstance(t, torch.Tensor))
            parameters = sum(parameter.numel() for parameter in module.parameters())
            found.append(LayerWork(parameters, counter.get_total_flops() // _SAMPLES, handed_on // _SAMPLES))
    return tuple(found)
