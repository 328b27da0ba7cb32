"""What runs on each rank of the tests of bad input: an engine that is given something it cannot use."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Plan
from halocline.runtime import Engine, World
from harness.one_process import linear

TWO = """microbatches = 2
schedule = "1f1b"
stages = [{layers = [0, 2]}, {layers = [2, 4]}]"""
TILED = """microbatches = 2
stages = [{layers = [0, 2], tiles = [1, 2]}, {layers = [2, 4], tiles = [1, 2]}]"""
GEMS = """microbatches = 2
schedule = "gems"
pipes = 2
stages = [{layers = [0, 2]}, {layers = [2, 4]}]"""


class Hungry(nn.Module):
    """Wants more memory than any machine has, from its second microbatch on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if not type(x).__name__.startswith("Fake"):
            self.calls += 1
            if self.calls == 2:
                torch.empty(1 << 60, dtype=torch.uint8)
        return self.linear(x)


class Words(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return "not a tensor"


class Spoiled(nn.Module):
    """Divides by zero in one microbatch."""

    def __init__(self, bad: float = 7.0) -> None:
        super().__init__()
        self.norm, self.bad = nn.BatchNorm1d(4), bad

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) / (x.detach().max() < self.bad).to(x.dtype)


class Later(nn.Module):
    """Divides by zero in every second microbatch from the second step of two microbatches on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += not type(x).__name__.startswith("Fake")
        return self.linear(x) / (0.0 if self.calls > 2 and self.calls % 2 == 0 else 1.0)


def vectors(samples: int = 4, big: int = -1) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, samples * 4, dtype=torch.float64).view(samples, 4)
    if big >= 0:
        x[big, 0] = 9.0
    return x, x.flip(1).clone()


def engine(text: str, layers: list[Any], **options: Any) -> Engine:
    return Engine(
        Plan.from_toml(text),
        layers,
        loss=F.mse_loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        world=World.join(deadline=300.0),
        dtype=torch.float64,
        **options,
    )


def said(act: Any) -> str:
    try:
        act()
    except (ValueError, RuntimeError, ArithmeticError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def nan(text: str, policy: str, place: int = 1) -> tuple[str, list[float], bool]:
    """One good step, one with a loss that is not finite, one good step: what was said, the losses, what changed."""
    layers: list[Any] = [linear, linear, linear, linear]
    layers[place] = Later if place else Spoiled
    run = engine(text, layers, nan=policy)
    losses = [run.step(*vectors()).loss]
    before = {n: t.clone() for n, t in (*run.named_parameters(), *run.named_buffers())}
    # The last sample is large: the last microbatch is spoiled. Spoiled in place 0 sees it as it is.
    message = said(lambda: losses.append(run.step(*vectors(big=3)).loss))
    after = dict((*run.named_parameters(), *run.named_buffers()))
    parameters = {n for n, _ in run.named_parameters()}
    names = before if policy == "skip" else parameters
    unchanged = all(torch.equal(before[n], after[n]) for n in names)
    if policy == "skip":
        losses.append(run.step(*vectors()).loss)
    return message, losses, unchanged


def hungry() -> str:
    run = engine(TWO, [linear, linear, Hungry, linear])
    if not run.world.rank:
        run.world.deadline = 3.0  # the other is on its way out of memory, and will not answer
    return said(lambda: run.step(*vectors(8)))


def words(layer: int) -> str:
    layers: list[Any] = [linear, linear, linear, linear]
    layers[layer] = Words
    run = engine(TWO, layers)
    run.world.deadline = 3.0
    return said(lambda: run.step(*vectors()))


def too_small(text: str) -> str:
    run = engine(text, [linear] * 4)
    return said(lambda: run.step(*vectors(1)))


def mismatched() -> str:
    three = TWO.replace("[{layers = [0, 2]}", "[{layers = [0, 1]}, {layers = [1, 2]}")
    return said(lambda: engine(three, [linear] * 4))
