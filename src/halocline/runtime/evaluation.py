"""Forwards alone: a batch of any size goes through the pipes without a backward, and the last stage measures it.

The instructions are the schedule's own, less those of backwards: a part of one global order, so they cannot lock.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from halocline.plan.layout import ACTIVATION
from halocline.runtime.batch import Microbatches
from halocline.runtime.executor import Executor
from halocline.runtime.stage import sums_of
from halocline.schedule.events import Events
from halocline.schedule.instruction import FORWARD, FREE, Instruction
from halocline.tiling.randomness import kept_randomness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halocline.runtime.engine import Engine


@dataclass(frozen=True)
class Evaluation:
    """What a batch gave; the same on every rank."""

    loss: float
    """The mean over all samples."""
    samples: int
    totals: dict[str, float]
    """Measure -> its sum over all samples."""


class ForwardExecutor(Executor):
    found: Tensor

    def evaluate(self, work: Microbatches) -> Tensor:
        """The sums of the loss (times samples) and of each measure, of the microbatches that this rank speaks for."""
        self.found = torch.zeros(1 + len(work.measures), dtype=torch.float64, device=self.world.device)
        self.instructions = [i for i in self.instructions if _forward_only(i) and work.samples[i.microbatch]]
        self.run(work, lambda: None)
        self.flight.settle(self.current)
        return self.found

    def _forward(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = instruction
        held = self.held[pipe, stage, microbatch] = self._inputs(pipe, stage, microbatch)
        runner = self.runners[pipe, stage]
        value, target = runner.predict(held, self.work.number, self.work.first + microbatch)
        held.inputs = []
        if runner.loss is None:
            return
        sums = sums_of({"loss": runner.loss, **self.work.measures}, value, target)
        sums[0] *= self.work.samples[microbatch]
        if self.local == self.layout.team(pipe, stage)[0]:
            self.found += sums.to(self.found.device)


def _forward_only(instruction: Instruction) -> bool:
    kind, *_, what, peer = instruction
    return kind == FORWARD or what == ACTIVATION or (kind == FREE and peer < 0)


def evaluate(engine: Engine, work: Microbatches) -> Evaluation:
    """See `Engine.evaluate`."""
    if not work.total:
        raise ValueError("a batch of 0 samples has no loss: give at least 1")
    executor = ForwardExecutor(
        engine.world,
        engine.layout,
        engine.schedule.ranks[engine.local],
        engine.runners,
        engine.groups,
        {},
        engine.shapes,
        events=Events([engine.world.logbook]),
    )
    with _in_evaluation(engine), engine.sharding.gathered(), kept_randomness(engine.world.device):
        engine.shapes.learn(work.fields, work.sizes, work.orders)
        sums = executor.evaluate(work)
        totals = engine.world.sum(sums, label="sum of measures").tolist()
    return Evaluation(totals[0] / work.total, work.total, dict(zip(work.measures, totals[1:])))


@contextmanager
def _in_evaluation(engine: Engine) -> Iterator[None]:
    """Layers in evaluation mode, each as it was afterwards."""
    modes = {m: m.training for held in engine.modules.values() for _, layer in held for m in layer.modules()}
    engine.train(False)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
