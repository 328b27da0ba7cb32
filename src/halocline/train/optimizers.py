"""Optimizers and learning rates: what updates the parameters, how fast at which step, and what is left undecayed.

Knows parameters; nothing of ranks or stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from halocline.train.settings import OptimizerSettings


@dataclass(frozen=True)
class OptimizerMaker:
    """Makes an optimizer from parameters. Biases and the weights of norms (tensors of one dim) are not decayed."""

    settings: OptimizerSettings

    def groups(self, parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
        """The parameters as groups: those that decay and those that do not. Every rank of a stage makes the same."""
        every = list(parameters)
        decayed = [p for p in every if self.settings.decay_all or p.ndim > 1]
        kept = [p for p in every if not (self.settings.decay_all or p.ndim > 1)]
        groups = [
            {"params": decayed, "weight_decay": self.settings.weight_decay},
            {"params": kept, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def __call__(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        given = list(parameters)
        groups = given if given and isinstance(given[0], dict) else self.groups(given)
        said = self.settings
        if said.name == "adamw":
            return torch.optim.AdamW(groups, lr=said.lr, betas=(said.momentum, said.beta2))
        return torch.optim.SGD(groups, lr=said.lr, momentum=said.momentum)


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of each step: it rises over `warmup` steps, then follows its schedule to `final_lr` x `lr`.

        constant  /-----        cosine  /-.           linear  /\\
                 /                     /   `-.__             /  \\__
    """

    settings: OptimizerSettings
    total: int = 1
    """Steps of the whole run."""

    def at(self, step: int) -> float:
        """Of the step after `step` steps were taken."""
        said = self.settings
        if step < said.warmup:
            return said.lr * (step + 1) / said.warmup
        if said.lr_schedule == "constant":
            return said.lr
        done = min(1.0, (step - said.warmup) / max(1, self.total - said.warmup))
        share = (1 + math.cos(math.pi * done)) / 2 if said.lr_schedule == "cosine" else 1 - done
        return said.lr * (said.final_lr + (1 - said.final_lr) * share)


def set_learning_rate(optimizer: torch.optim.Optimizer | None, rate: float) -> None:
    for group in optimizer.param_groups if optimizer is not None else ():
        group["lr"] = rate
