"""What the engine costs where there is nothing to distribute: one process, one stage, against a loop by hand with the
same microbatches. Prints the ratio of median step times (ours / by hand; 1.02 or less is the aim), and what a timeline
adds to it.

    OMP_NUM_THREADS=1 python benchmarks/loop_overhead.py [--steps 40]

The ways take turns step by step, so that they meet the same machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from halocline.plan import Plan
from halocline.runtime import Engine

SAMPLES, MICROBATCHES, SIDE = 16, 4, 32


def block(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())


def layers() -> list[Callable[[], nn.Module]]:
    return [
        lambda: nn.Conv2d(3, 32, 3, padding=1),
        *([lambda: block(32)] * 6),
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    ]


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def by_hand(x: torch.Tensor, y: torch.Tensor) -> Callable[[], float]:
    model = nn.Sequential(*(make() for make in layers()))
    update = optimizer(model.parameters())

    def step() -> float:
        update.zero_grad()
        total = 0.0
        for a, b in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES)):
            loss = F.cross_entropy(model(a), b) / MICROBATCHES
            loss.backward()
            total += loss.item()
        update.step()
        return total

    return step


def engine(x: torch.Tensor, y: torch.Tensor, timeline: str | None = None) -> Callable[[], float]:
    plan = Plan.from_flags(split_size=1, parts=MICROBATCHES, layers=len(layers()))
    made = Engine(plan, layers(), loss=F.cross_entropy, optimizer=optimizer, timeline=timeline)
    return lambda: made.step(x, y).loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = torch.randn(SAMPLES, 3, SIDE, SIDE), torch.randint(0, 10, (SAMPLES,))
    with tempfile.TemporaryDirectory() as directory:
        ways = {"by hand": by_hand(x, y), "engine": engine(x, y), "with a timeline": engine(x, y, directory)}
        wall: dict[str, list[float]] = {name: [] for name in ways}
        work: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(options.steps + 3):
            for name, step in ways.items():
                begin, busy = time.perf_counter(), time.process_time()
                step()
                if number >= 3:
                    wall[name].append(time.perf_counter() - begin)
                    work[name].append(time.process_time() - busy)
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}, {MICROBATCHES} microbatches of {SAMPLES // MICROBATCHES}"
    )
    for name in ways:
        against = "engine" if name == "with a timeline" else "by hand"
        print(
            f"{name:16s} {statistics.median(wall[name]) * 1e3:7.2f} ms wall, "
            f"{statistics.median(work[name]) * 1e3:7.2f} ms of CPU time; against {against}: "
            f"{statistics.median(wall[name]) / statistics.median(wall[against]):.3f} wall, "
            f"{statistics.median(work[name]) / statistics.median(work[against]):.3f} CPU"
        )


if __name__ == "__main__":
    main()
