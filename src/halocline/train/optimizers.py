"""Optimizers and learning rates: what updates the parameters, how fast at which step, and what is left undecayed.

Knows parameters; nothing of ranks or stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class OptimizerMaker:
    """Makes an optimizer from parameters. Biases and the weights of norms (tensors of one dim) are not decayed."""

    name: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    """Of sgd; the first beta of adamw."""
    beta2: float = 0.999
    weight_decay: float = 0.0
    decay_all: bool = False

    def groups(self, parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
        """The parameters as groups: those that decay and those that do not. Every rank of a stage makes the same."""
        every = list(parameters)
        decayed = [p for p in every if self.decay_all or p.ndim > 1]
        kept = [p for p in every if not (self.decay_all or p.ndim > 1)]
        groups = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": kept, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def __call__(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        given = list(parameters)
        groups = given if given and isinstance(given[0], dict) else self.groups(given)
        if self.name == "adamw":
            return torch.optim.AdamW(groups, lr=self.lr, betas=(self.momentum, self.beta2))
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum)


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of each step: it rises over `warmup` steps, then follows its schedule to `final` x `peak`.

        constant  /-----        cosine  /-.           linear  /\\
                 /                     /   `-.__             /  \\__
    """

    peak: float
    schedule: str = "constant"
    warmup: int = 0
    total: int = 1
    """Steps of the whole run."""
    final: float = 0.0

    def at(self, step: int) -> float:
        """Of the step after `step` steps were taken."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.peak
        done = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        share = (1 + math.cos(math.pi * done)) / 2 if self.schedule == "cosine" else 1 - done
        return self.peak * (self.final + (1 - self.final) * share)


def set_learning_rate(optimizers: Iterable[torch.optim.Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        groups: Sequence[dict[str, Any]] = optimizer.param_groups
        for group in groups:
            group["lr"] = rate
