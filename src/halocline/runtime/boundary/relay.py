"""The relay of shapes: before the first microbatch of a new size, each stage works out what it will hand on, from what
the stage before it has told, without touching data. Told through the process group's store, waited for with a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from halocline.plan.layout import Layout
from halocline.runtime.batch import Field
from halocline.runtime.boundary.crossing import Crossing, decode, encode, wanted
from halocline.runtime.processes.lost import PeerLost
from halocline.runtime.processes.world import World
from halocline.runtime.stage import StageRunner


class Relay:
    """What enters each stage that this rank holds or feeds, by size of microbatch."""

    _made = 0

    def __init__(self, world: World, layout: Layout, runners: Mapping[tuple[int, int], StageRunner]) -> None:
        self.world, self.layout, self.runners = world, layout, runners
        self._known: dict[tuple[int, int], tuple[Crossing, ...]] = {}
        """(stage, samples) -> what enters it, as the stage before it holds it. Both pipes agree."""
        self._sizes: set[int] = set()
        self.replica = world.rank // layout.ranks_per_replica
        self._shapes: list[tuple[int, ...]] = []
        self._predictions: dict[int, Crossing] = {}
        Relay._made += 1
        self._name = f"halocline/shapes/{Relay._made}/{self.replica}"

    def entering(self, pipe: int, stage: int, samples: int) -> tuple[Crossing, ...]:
        return self._known[stage, samples]

    def learn(
        self, inputs: Sequence[Field], sizes: Sequence[int], orders: Sequence[tuple[int, ...]] | None = None
    ) -> None:
        """Make sure that the shapes of these microbatch sizes are known. Every rank calls this with equal sizes.
        `orders` says how the inputs lie in memory, if not in the usual way."""
        shapes = [shape for shape, _ in inputs]
        if shapes and self._shapes and shapes != self._shapes:
            raise ValueError(
                f"the inputs have shapes {shapes} per sample and had {self._shapes} before: only the number of samples "
                f"may change between steps; make another Engine for another image size"
            )
        self._shapes = shapes or self._shapes
        for samples in sizes:
            if samples not in self._sizes:
                self._sizes.add(samples)
                self._learn(inputs, samples, orders or [()] * len(inputs))

    def _learn(self, inputs: Sequence[Field], samples: int, orders: Sequence[tuple[int, ...]]) -> None:
        for stage in sorted({stage for _, stage in self.runners}):
            if stage == 0:
                if not inputs:
                    raise ValueError(f"rank {self.world.rank} holds the first stage but was given no inputs")
                last = self._runner(0).options.channels_last
                self._known[0, samples] = tuple(
                    Crossing(
                        (samples, *shape),
                        str(dtype).removeprefix("torch."),
                        dtype.is_floating_point,
                        order=(0, 2, 3, 1) if last and len(shape) == 3 else order,
                    )
                    for (shape, dtype), order in zip(inputs, orders)
                )
            else:
                self._known[stage, samples] = self._hear(stage, samples)
            runner = self._runner(stage)
            if runner.loss is None:
                leaving = runner.crossings_after(self.received(stage, samples))
                self._known[stage + 1, samples] = leaving
                self._tell(stage + 1, samples, leaving)

    def received(self, stage: int, samples: int) -> tuple[Crossing, ...]:
        """What enters a stage of this rank, as its team wants it."""
        return tuple(wanted(c, self.layout.plan.stages[stage]) for c in self._known[stage, samples])

    def prediction(self, samples: int) -> Crossing:
        """The first tensor that the last stage, which this rank holds, gives to the loss."""
        last = len(self.layout.plan.stages) - 1
        if samples not in self._predictions:
            self._predictions[samples] = self._runner(last).crossings_after(self.received(last, samples), made=True)[0]
        return self._predictions[samples]

    def _runner(self, stage: int) -> StageRunner:
        return next(runner for (_, s), runner in self.runners.items() if s == stage)

    def _tell(self, stage: int, samples: int, crossings: tuple[Crossing, ...]) -> None:
        speakers = {self.layout.team(p, stage - 1, self.replica)[0] for p in range(self.layout.plan.pipes)}
        if self.world.size > 1 and self.world.rank in speakers:
            store().set(f"{self._name}/{stage}/{samples}", encode(crossings))

    def _hear(self, stage: int, samples: int) -> tuple[Crossing, ...]:
        if (stage, samples) in self._known:
            return self._known[stage, samples]
        story = f"rank {self.world.rank} waits for the shapes that stage {stage - 1} hands to stage {stage}"
        return decode(heard(self.world, f"{self._name}/{stage}/{samples}", story))


def heard(world: World, key: str, story: str) -> str:
    """What another rank tells through the store."""
    end = time.monotonic() + world.deadline
    # Asked again and again: a wait in the store would print a warning of torch's each time it ends early.
    while not store().check([key]):
        lost = world.watch.loss if world.watch is not None else None
        if lost is not None or time.monotonic() > end:
            reason = f"they did not come in {world.deadline:g} s: a rank of that stage has failed"
            raise PeerLost(f"{story}: {lost or reason}")
        time.sleep(0.005)
    return store().get(key).decode()


def store() -> Any:
    return dist.distributed_c10d._get_default_store()
