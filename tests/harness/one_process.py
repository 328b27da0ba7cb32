"""Plans whose stages are all on one process, which hands over from one to the next as ranks do, but for the messages;
and an engine and batches for them, of samples with four values."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Plan, Stage
from halocline.runtime import Engine

CUT = Plan(tuple(Stage((s, s + 1)) for s in range(4)), "interleaved", 2, chunks=4)
MIRRORED = Plan((Stage((0, 4)),), "gems", 2, pipes=2)
"""Both pipes on one rank: each a copy that sees half of the microbatches."""
AGAIN = Plan(tuple(Stage((s, s + 1), recompute=True) for s in range(4)), "interleaved", 2, chunks=4)


def linear() -> nn.Module:
    return nn.Linear(4, 4)


def batch(samples: int) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 1, samples * 4, dtype=torch.float64).view(samples, 4).sin()
    return x, torch.arange(samples) % 4


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def engine(plan: Plan, layers: list[Any]) -> Engine:
    return Engine(plan, layers, loss=F.cross_entropy, optimizer=sgd, dtype=torch.float64)
