"""What a model answers with: the shape of its output for two samples, found by running its layers on tensors without
data. Knows layers and shapes; what an answer is good for is the caller's to say.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from halocline.models.model import Model
from halocline.models.tensors import tensors_of

SAMPLES = 2
"""BatchNorm in training refuses one sample of one pixel."""


def answer(model: Model, image: tuple[int, int] | None = None) -> Any:
    """What the last layer returns, on the meta device; None where the layers cannot run without data, or not on images
    of this size (left out: the model's own)."""
    inputs = model.inputs(SAMPLES, image)
    value: Any = inputs[0] if len(inputs) == 1 else tuple(inputs)
    try:
        with torch.device("meta"), torch.no_grad():
            for layer in model.layers:
                module = layer if isinstance(layer, nn.Module) else layer()
                state = {name: t.to("meta") for name, t in tensors_of(module)}
                value = functional_call(module, state, (value,), tie_weights=False)
    except Exception:  # a layer of anyone's may raise anything; on data it will say so itself
        return None
    return value


def shape_of(value: Any) -> str:
    """In words, for messages."""
    if isinstance(value, Tensor):
        return " x ".join(map(str, value.shape[1:])) or "one number"
    return f"a {type(value).__name__}"
