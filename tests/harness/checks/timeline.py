"""What runs on each rank of the timeline tests: a few steps of a small model, with a timeline or without."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from halocline.plan import Plan
from halocline.runtime import Engine, World


def layers(count: int) -> list[Any]:
    return [lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)) for _ in range(count - 1)] + [
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    ]


def engine(text: str, timeline: str | None) -> Engine:
    plan = Plan.from_toml(text)
    return Engine(
        plan,
        layers(plan.layers),
        loss=F.cross_entropy,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        world=World.join(deadline=300),
        dtype=torch.float64,
        timeline=timeline,
    )


def batch() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(8, 3, 8, 12, generator=generator, dtype=torch.float64), torch.arange(8) % 3


def run(text: str, timeline: str | None, steps: int) -> list[float]:
    made = engine(text, timeline)
    return [made.step(*batch()).loss for _ in range(steps)]
