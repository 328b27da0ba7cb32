"""How much a model computes: the floating-point operations of each layer's forward, for one sample. Found by running
the layers on tensors without data, so that the largest model is counted in seconds on any machine.

Counts what is a matrix product or a convolution (a multiplication and an addition are two operations), which is nearly
all of it; a backward takes twice as many.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from halocline.models.model import Model

_SAMPLES = 2
"""BatchNorm in training refuses one sample of one pixel."""


def flops(model: Model, image: tuple[int, int] | None = None) -> tuple[int, ...]:
    """Of each layer, at an image size (left out: the model's own) or its sequence."""
    inputs = model.inputs(_SAMPLES, image)
    value: Any = inputs[0] if len(inputs) == 1 else tuple(inputs)
    found = []
    with torch.device("meta"), torch.no_grad():
        for number, layer in enumerate(model.layers):
            module = layer if isinstance(layer, nn.Module) else layer()
            state = {name: t.to("meta") for name, t in (*module.named_parameters(), *module.named_buffers())}
            with FlopCounterMode(display=False) as counter:
                try:
                    value = functional_call(module, state, (value,))
                except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
                    raise ValueError(
                        f"layer {number} of {model.name} cannot be run without data ({' '.join(str(error).split())}), "
                        f"so its operations cannot be counted: use a partition method that does not need them"
                    ) from error
            found.append(counter.get_total_flops() // _SAMPLES)
    return tuple(found)
