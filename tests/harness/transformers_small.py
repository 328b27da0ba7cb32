"""The transformers of the zoo in small, on one device, and tokens for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halocline.models.model import SPANS, Model, make, tie

VOCAB, TOKENS = 37, 11
NAMES = ("gpt3-small", "bert-base-uncased", "t5-3b", "bloom-3b")


def small(name: str, **options: Any) -> Model:
    return make(name, **{"layers": 2, "hidden": 24, "heads": 4, "vocab": VOCAB, "seq": TOKENS, **options})


def built(model: Model, seed: int = 0, tied: bool = True) -> nn.Sequential:
    """All layers, in float64, every parameter random."""
    torch.manual_seed(seed)
    net = nn.Sequential(*(layer() for layer in model.layers if not isinstance(layer, nn.Module))).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return tie(net, model.tied) if tied else net


def words(samples: int = 3, tokens: int = TOKENS, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (samples, tokens), generator=torch.Generator().manual_seed(seed))


def inputs(model: Model, source: Tensor, target: Tensor | None = None) -> Any:
    return (source, source.flip(0) if target is None else target) if model.task == SPANS else source
