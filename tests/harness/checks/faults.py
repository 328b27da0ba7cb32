"""What runs on each rank of the launch and fault tests: a small pipeline whose ranks meet some misfortune.

    python faults.py MISFORTUNE        under any launcher

Each rank prints `joined RANK SIZE LAUNCHER TRANSPORT` and, if all goes well, `done RANK LOSS`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Plan
from halocline.runtime import Engine, join

PLAN = Plan.from_toml(
    """microbatches = 4
    schedule = "1f1b"
    stages = [{layers = [0, 1]}, {layers = [1, 2]}, {layers = [2, 3]}]"""
)


class Unlucky(nn.Module):
    """A linear layer to which something happens in the second microbatch of the third step."""

    def __init__(self, misfortune: str) -> None:
        super().__init__()
        self.linear, self.misfortune, self.calls = nn.Linear(6, 6), misfortune, 0

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and not type(x).__name__.startswith("Fake"):
            self.calls += 1
        if self.calls == 10:
            misfortune(self.misfortune)
        return self.linear(x)


def misfortune(kind: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise":
        raise ArithmeticError("the moon is full")
    if kind == "hang":
        time.sleep(600)
    if kind == "exit":
        os._exit(7)


def run(kind: str, deadline: float = 600.0) -> float:
    """`deadline` holds from the second step on: it is nobody's fault how long the processes take to start."""
    torch.set_num_threads(1)
    world = join("cpu", deadline=600.0)
    assert world.transport is not None
    print(f"joined {world.rank} {world.size} {world.launcher} {world.transport.name}", flush=True)
    unlucky = kind if world.rank == 1 else ""
    layers = [lambda: Unlucky(unlucky) for _ in range(3)]
    engine = Engine(
        PLAN, layers, loss=F.mse_loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), world=world, dtype=torch.float64
    )
    x = torch.linspace(-1, 1, 48, dtype=torch.float64).view(8, 6)
    loss = 0.0
    for _ in range(4):
        loss = engine.step(x, x.flip(1)).loss
        world.deadline = deadline
    print(f"done {world.rank} {loss:.12f}", flush=True)
    world.close()
    return loss


if __name__ == "__main__":
    warnings.simplefilter("error")
    run(sys.argv[1])
