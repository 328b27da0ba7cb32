"""The simulated device: a GPU that is not there. Training really runs on the CPU; the device says how long each
instruction takes and what power it draws (see law), and keeps a time and an energy counter of its own.

Its time is not the machine's. It goes on as instructions are done: one begins when the device is free and the messages
it needs are due, by the times at which the other devices sent them (see rack), and takes what the law says, give or
take a little. So a run is as quick as the CPU allows, and gives the same times and joules again on any machine. Waiting
draws the blocking power. The counter advances every 100 ms of the device's time, as NVML's does.

The executor tells it of each instruction before it tells observers, so that they see its time. Everything it gives is
called "simulated".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from halocline.energy.device.meter import ClockRefused, Reading
from halocline.energy.simulated.law import Law
from halocline.energy.simulated.rack import ClockFile, Rack
from halocline.plan.layout import ACTIVATION, GRADIENT
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    COMPUTE,
    FORWARD,
    RECEIVE,
    RECOMPUTE,
    REDUCE,
    SEND,
    STEP,
    Instruction,
    Schedule,
)

PERIOD = 0.1
"""Seconds between two advances of the counter."""


class SimulatedDevice:
    """The device of one rank: a meter, a clock, and what acts where a GPU would work."""

    name = "simulated GPU"

    def __init__(
        self,
        directory: str | Path,
        schedule: Schedule,
        rank: int,
        *,
        law: Law | None = None,
        work: Sequence[float] | None = None,
        seed: int = 0,
        spread: float = 0.005,
        locked: bool = False,
    ) -> None:
        """`directory` is shared by the devices of a run. `work` scales the times of each stage (left out: its layers
        over the mean of all stages, divided by the ranks of its team). `spread` is the relative deviation of each
        time and power. `locked`: as a GPU whose clock this user may not set."""
        self.law = law or Law()
        self.rank, self.locked, self._spread = rank, locked, spread
        plan, layout = schedule.plan, schedule.layout
        self._local = rank % layout.ranks_per_replica
        self._first = rank - self._local
        self._row = schedule.ranks[self._local]
        self._schedule = schedule
        self._work = tuple(work) if work is not None else _work(schedule)
        if len(self._work) != len(plan.stages):
            raise ValueError(
                f"work has {len(self._work)} numbers and the plan {len(plan.stages)} stages: give one each"
            )
        self._apart = {i[1:4] for i in self._row if i.kind == RECOMPUTE}
        """(pipe, stage, microbatch) whose recomputation is an instruction of its own."""
        self._receives: dict[tuple[object, ...], list[Instruction]] = {}
        for receive in (i for i in self._row if i.kind == RECEIVE):
            self._receives.setdefault(receive[1:5], []).append(receive)
        lengths = [len(row) for row in schedule.ranks] * plan.replicas
        self.rack = Rack(directory, rank, lengths)
        self._places = [{i: number for number, i in enumerate(row)} for row in schedule.ranks]
        """For each rank of a replica: instruction -> its place in the list."""
        self._random = random.Random(f"{seed} {rank}")
        self._file = ClockFile(Path(directory) / f"clock-{rank}.txt")
        self._file.write(None)
        self._frequency: int | None = None
        self._step = 0
        self._reductions: list[int] = []
        self._time = self._energy = self._counted = 0.0
        self._ticks = 0
        self._changes: list[Reading] = []

    # -- the meter -------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the device was made, by its own time."""
        return self._time

    def energy(self) -> float:
        """Joules at the counter's last advance."""
        return self._counted

    def changes(self) -> list[Reading]:
        """The counter's advances since this was last asked."""
        changes, self._changes = self._changes, []
        return changes

    def _spend(self, seconds: float, watts: float) -> None:
        """Let time pass at a power."""
        end = self._time + seconds
        while (tick := (self._ticks + 1) * PERIOD) <= end:
            self._ticks += 1
            self._counted = self._energy + watts * (tick - self._time)
            self._changes.append(Reading(tick, self._counted))
        self._energy += watts * seconds
        self._time = end

    # -- the clock -------------------------------------------------------------------------------------------------

    def frequencies(self) -> list[int]:
        return list(self.law.frequencies)

    def actual(self) -> int:
        return self._frequency or self.law.frequencies[0]

    def set(self, frequency: int) -> None:
        if self.locked:
            raise ClockRefused("the clock of this simulated GPU may not be set: it was made with locked=True")
        self._frequency = frequency
        self._file.write(frequency)

    def reset(self) -> None:
        self._frequency = None
        self._file.write(None)

    def rescue(self) -> list[str]:
        return ["simulated", str(self._file.path)]

    # -- its work --------------------------------------------------------------------------------------------------

    def step_begins(self, step: int) -> None:
        self._step = step

    def begin(self, instruction: Instruction) -> None:
        if instruction.kind in (SEND, REDUCE):
            self._tell(instruction, self._time)
        if instruction.kind == REDUCE:
            self._reductions.append(instruction.stage)

    def ready(self, instruction: Instruction) -> None:
        """What the instruction needs is there: let the time until then pass."""
        if instruction.kind == STEP:
            due = max((self._reduced(stage) for stage in self._reductions), default=0.0)
            self._reductions = []
        else:
            due = max(map(self._due, self._needs(instruction)), default=0.0)
            due = self._with_team(instruction, max(due, self._time))
        self._spend(max(0.0, due - self._time), self.law.blocking)

    def end(self, instruction: Instruction) -> None:
        if instruction.kind not in COMPUTE and instruction.kind != STEP:
            return
        frequency = self.actual()
        work = 1.0 if instruction.kind == STEP else self._work[instruction.stage]
        seconds = sum(self.law.seconds(kind, frequency, work) for kind in self._parts(instruction))
        watts = self.law.watts(instruction.kind, frequency)
        self._spend(seconds * self._give_or_take(), watts * self._give_or_take())

    # -- when and how long -----------------------------------------------------------------------------------------

    def _parts(self, instruction: Instruction) -> list[str]:
        """A backward includes the recomputation of a stage that keeps only its input, unless that stands apart."""
        kind, stage = instruction.kind, instruction.stage
        inside = kind in (BACKWARD, BACKWARD_INPUT) and self._schedule.plan.stages[stage].recompute
        return [FORWARD, kind] if inside and instruction[1:4] not in self._apart else [kind]

    def _give_or_take(self) -> float:
        return max(0.5, self._random.gauss(1.0, self._spread))

    def _needs(self, instruction: Instruction) -> list[Instruction]:
        """The receives that an instruction waits for."""
        kind, pipe, stage, microbatch = instruction[:4]
        if kind == FORWARD:
            return self._receives.get((pipe, stage - 1, microbatch, ACTIVATION), [])
        if kind in (BACKWARD, BACKWARD_INPUT):
            return self._receives.get((pipe, stage, microbatch, GRADIENT), [])
        return []

    def _due(self, receive: Instruction) -> float:
        """When the other device sent it."""
        return self._ask(receive.peer, receive._replace(kind=SEND, peer=self._local))

    def _with_team(self, instruction: Instruction, ready: float) -> float:
        """A team computes together: when all of it is ready."""
        team = self._schedule.layout.team(instruction.pipe, instruction.stage)
        if len(team) == 1:
            return ready
        self._tell(instruction, ready)
        return max(self._ask(local, instruction) for local in team)

    def _reduced(self, stage: int) -> float:
        """When the sum of a stage's gradients is there."""
        reduce = Instruction(REDUCE, 0, stage)
        members = [local for local in range(len(self._schedule.ranks)) if reduce in self._places[local]]
        replicas = range(self._schedule.plan.replicas)
        started = max(self._ask(local, reduce, replica) for replica in replicas for local in members)
        return started + self.law.seconds(REDUCE, self.law.frequencies[0], self._work[stage])

    def _ask(self, local: int, instruction: Instruction, replica: int | None = None) -> float:
        first = self._first if replica is None else replica * len(self._schedule.ranks)
        return self.rack.ask(first + local, self._step, self._places[local][instruction])

    def _tell(self, instruction: Instruction, seconds: float) -> None:
        self.rack.tell(self._step, self._places[self._local][instruction], seconds)


def _work(schedule: Schedule) -> tuple[float, ...]:
    stages, layout = schedule.plan.stages, schedule.layout
    mean = schedule.plan.layers / len(stages)
    return tuple((s.layers[1] - s.layers[0]) / mean / len(layout.team(0, n)) for n, s in enumerate(stages))
