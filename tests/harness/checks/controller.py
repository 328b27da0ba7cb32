"""What runs on each rank of the controller's tests: a few steps of a small model with the observers of energy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.energy.controller import Controller, DeviceStep, Listener, Player, Span
from halocline.energy.device.clock import GuardedClock
from halocline.energy.device.meter import CounterWatch
from halocline.energy.profile.timing_csv import TimingCsv
from halocline.energy.simulated.device import SimulatedDevice
from halocline.plan import Plan
from halocline.runtime import Engine, World
from halocline.schedule import generate
from halocline.schedule.events import TimeMarks
from halocline.schedule.instruction import COMPUTE


class Slow(nn.Module):
    """Takes a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return x


class Recording(Listener):
    """A listener that keeps everything."""

    def __init__(self) -> None:
        self.steps: list[DeviceStep] = []
        self.spans: list[Span] = []

    def span(self, span: Span) -> None:
        self.spans.append(span)

    def step(self, step: DeviceStep) -> None:
        self.steps.append(step)


class Pattern(Player):
    """Plays two frequencies by turns, and then the device's own clock."""

    def __init__(self, count: int) -> None:
        self.count = count

    def play(self, step: int) -> list[int] | None:
        return None if step == 2 else [(1410, 900)[n // 2 % 2] for n in range(self.count)]


def engine(plan: Plan, observers: Any = (), slow: float = 0.0, simulated: Any = None) -> Engine:
    layers = [lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(plan.layers)]
    if slow:
        layers[0] = lambda: nn.Sequential(nn.Linear(6, 6), Slow(slow))
    return Engine(
        plan,
        layers,
        loss=F.mse_loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        world=World.join(deadline=300),
        observers=observers,
        simulated=simulated,
    )


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 6, generator=generator)


def plain(text: str, steps: int) -> list[float]:
    made = engine(Plan.from_toml(text))
    return [made.step(*batch()).loss for _ in range(steps)]


def controlled(text: str, directory: str, steps: int) -> dict[str, Any]:
    """With a simulated device, whose clock plays a pattern."""
    plan, rank = Plan.from_toml(text), World.join().rank
    schedule = generate(plan)
    row = schedule.ranks[rank % plan.ranks_per_replica]
    device = SimulatedDevice(directory, schedule, rank, spread=0.0)
    clock, heard = GuardedClock(device), Recording()
    controller = Controller(
        row,
        TimeMarks(device.time),
        sampler=CounterWatch(device),
        clock=clock,
        player=Pattern(sum(i.kind in COMPUTE for i in row)),
        listeners=[heard, TimingCsv(directory, rank, meter=device.name)],
    )
    made = engine(plan, (controller,), simulated=device)
    losses = [made.step(*batch()).loss for _ in range(steps)]
    controller.close()
    state = Path(directory, f"clock-{rank}.txt").read_text().strip()
    return {"losses": losses, "steps": heard.steps, "spans": heard.spans, "sets": clock.sets, "state": state}


def timed(text: str, slow: float) -> list[Span]:
    """Without a device, by the machine's time; the first stage is slow."""
    plan, rank = Plan.from_toml(text), World.join().rank
    heard = Recording()
    controller = Controller(generate(plan).ranks[rank], TimeMarks(), listeners=[heard])
    engine(plan, (controller,), slow).step(*batch())
    controller.close()
    return list(heard.steps[0].spans)
