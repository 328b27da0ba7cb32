"""What stages tell each other in words, once, through the process group's store: shapes before data, and which inputs
get no gradient. Knows layers by the stage's runner; sends no tensors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple
from functools import cache
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor

from halocline.plan.layout import Layout
from halocline.runtime.batch import Field
from halocline.runtime.boundary.crossing import Crossing, wanted
from halocline.runtime.processes.lost import PeerLost
from halocline.runtime.processes.world import World
from halocline.runtime.stage import StageRunner


class Told:
    """What ranks of one replica tell each other. All ranks make these in the same order."""

    _made: ClassVar[int] = 0

    def __init__(self, about: str, world: World, layout: Layout) -> None:
        self.world, self.layout = world, layout
        self.replica = world.rank // layout.ranks_per_replica
        type(self)._made += 1
        self._name = f"halocline/{about}/{self._made}/{self.replica}"

    def _tell(self, key: str, text: str, speakers: Collection[int]) -> None:
        """Say it, on the ranks that speak for their team."""
        if self.world.size > 1 and self.world.rank in speakers:
            _store().set(f"{self._name}/{key}", text)

    def _hear(self, key: str, story: str) -> str:
        """What another rank tells; `story` says what this rank waits for."""
        end = time.monotonic() + self.world.deadline
        # Asked again and again: a wait in the store would print a warning of torch's each time it ends early.
        while not _store().check([f"{self._name}/{key}"]):
            lost = self.world.watch.loss if self.world.watch is not None else None
            if lost is not None or time.monotonic() > end:
                reason = f"they did not come in {self.world.deadline:g} s: a rank of that stage has failed"
                raise PeerLost(f"rank {self.world.rank} waits for {story}: {lost or reason}")
            time.sleep(0.005)
        return _store().get(f"{self._name}/{key}").decode()


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


class Shapes(Told):
    """What enters each stage that this rank holds or feeds, by size of microbatch. Before the first microbatch of a new
    size, each stage works out what it will hand on, from what the stage before it has told, without touching data."""

    def __init__(self, world: World, layout: Layout, runners: Mapping[tuple[int, int], StageRunner]) -> None:
        super().__init__("shapes", world, layout)
        self.runners = runners
        self.entering: dict[tuple[int, int], tuple[Crossing, ...]] = {}
        """(stage, samples) -> what enters it, as the stage before it holds it. Both pipes agree."""
        self.received, self.prediction = cache(self._received), cache(self._prediction)
        self._sizes: set[int] = set()
        self._inputs: list[tuple[int, ...]] = []

    def _received(self, stage: int, samples: int) -> tuple[Crossing, ...]:
        """What enters a stage, as its own team wants it."""
        return tuple(wanted(c, self.layout.plan.stages[stage]) for c in self.entering[stage, samples])

    def _prediction(self, samples: int) -> Crossing:
        """The first tensor that the last stage, which this rank holds, gives to the loss."""
        last = len(self.layout.plan.stages) - 1
        return self._runner(last).crossings_after(self.received(last, samples), made=True)[0]

    def learn(
        self, inputs: Sequence[Field], sizes: Sequence[int], orders: Sequence[tuple[int, ...]] | None = None
    ) -> None:
        """Make sure that the shapes of these microbatch sizes are known. Every rank calls this with equal sizes.
        `orders` says how the inputs lie in memory, if not in the usual way."""
        shapes = [shape for shape, _ in inputs]
        if shapes and self._inputs and shapes != self._inputs:
            raise ValueError(
                f"the inputs have shapes {shapes} per sample and had {self._inputs} before: only the number of samples "
                f"may change between steps; make another Engine for another image size"
            )
        self._inputs = shapes or self._inputs
        for samples in sizes:
            if samples not in self._sizes:
                self._sizes.add(samples)
                self._learn(inputs, samples, orders or [()] * len(inputs))

    def _learn(self, inputs: Sequence[Field], samples: int, orders: Sequence[tuple[int, ...]]) -> None:
        for stage in sorted({stage for _, stage in self.runners}):
            runner = self._runner(stage)
            if stage == 0:
                if not inputs:
                    raise ValueError(f"rank {self.world.rank} holds the first stage but was given no inputs")
                last = runner.options.channels_last
                self.entering[0, samples] = tuple(
                    Crossing(
                        (samples, *shape),
                        str(dtype).removeprefix("torch."),
                        dtype.is_floating_point,
                        order=(0, 2, 3, 1) if last and len(shape) == 3 else order,
                    )
                    for (shape, dtype), order in zip(inputs, orders)
                )
            elif (stage, samples) not in self.entering:
                said = self._hear(f"{stage}/{samples}", f"the shapes that stage {stage - 1} hands to stage {stage}")
                self.entering[stage, samples] = tuple(Crossing(*fields) for fields in _tuples(json.loads(said)))
            if runner.loss is None:
                leaving = runner.crossings_after(self.received(stage, samples))
                self.entering[stage + 1, samples] = leaving
                speakers = {self.layout.team(pipe, stage, self.replica)[0] for pipe in range(self.layout.plan.pipes)}
                self._tell(f"{stage + 1}/{samples}", json.dumps([astuple(crossing) for crossing in leaving]), speakers)

    def _runner(self, stage: int) -> StageRunner:
        return next(runner for (_, s), runner in self.runners.items() if s == stage)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


class Detached(Told):
    """Which inputs of a stage get no gradient, because its layers detach them. That leaves the parameters of the stages
    before it without gradients, and none is not zero: an optimizer passes over such a parameter, and a zero it would
    decay. A stage's first backward shows it, and the stage before is told."""

    def __init__(self, world: World, layout: Layout) -> None:
        super().__init__("gradients", world, layout)
        self._known: dict[tuple[int, int], str] = {}
        """(pipe, stage) -> for each input 1 if it gets a gradient, or 0."""

    def tell(self, pipe: int, stage: int, gradients: Sequence[Tensor | None]) -> None:
        """A backward of a stage gave its inputs these gradients."""
        now = "".join("01"[gradient is not None] for gradient in gradients)
        was = self._known.get((pipe, stage))
        if was is None:
            self._known[pipe, stage] = now
            self._tell(f"{pipe}/{stage}", now, [self.layout.team(pipe, stage, self.replica)[0]])
        elif was != now:
            raise ValueError(
                f"of the {len(now)} inputs of stage {stage} {was.count('1')} got a gradient in an earlier microbatch "
                f"and {now.count('1')} in this one, and stages agree once on who gets none: detach always or never, or "
                f"put those layers and the ones before them into one stage"
            )

    def drop(self, pipe: int, stage: int, gradients: Sequence[Any]) -> list[Any]:
        """The gradients that a stage sent back, with None for what has none."""
        if (pipe, stage) not in self._known:
            self._known[pipe, stage] = self._hear(f"{pipe}/{stage}", f"what stage {stage} says of its gradients")
        return [g if known == "1" else None for g, known in zip(gradients, self._known[pipe, stage])]
