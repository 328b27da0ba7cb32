"""The image models in small, for tests: narrow, shallow, and otherwise as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from halocline.models.model import Model, make

SMALL: dict[str, dict[str, Any]] = {
    "amoebanet-d": {"num_layers": 3, "num_filters": 8, "num_classes": 5},
    "resnet-v1-14": {"base_width": 4, "num_classes": 5},
    "resnet-v2-11": {"base_width": 2, "num_classes": 5},
    "resnet18": {"base_width": 4, "num_classes": 5},
    "resnet50": {"base_width": 2, "num_classes": 5},
    "wide-resnet50_2": {"base_width": 2, "num_classes": 5},
    "unet": {"depth": 2, "base_width": 4, "num_classes": 5},
}


def small(name: str, **options: Any) -> Model:
    return make(name, **{**SMALL[name], **options})


def net(model: Model) -> nn.Sequential:
    """The whole model, in float64, the same for everybody."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer() for layer in model.layers)).double()  # type: ignore[operator]
