"""What a scheduler is, and what it knows of a job. A scheduler decides turns from what was played before; it never
waits, and it does long work only when it is told to, so that the server can do it beside its answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import Point
from halocline.energy.seat import Seat
from halocline.energy.server.digest import Digest
from halocline.energy.server.schedulers.turn import Notice, Turn
from halocline.energy.server.timeline import Timeline
from halocline.plan.plan import Plan
from halocline.schedule.instruction import COMPUTE, Schedule

Frequencies = list[tuple[str, int]]
"""The kind of each compute instruction of a rank, in order, and its MHz."""


class Solution(Protocol):
    """Plans to choose from: a whole frontier, or some that were given."""

    @property
    def time_min(self) -> float: ...

    @property
    def points(self) -> Sequence[Point]:
        """Time and energy, the corners of a frontier or the plans there are."""
        ...

    @property
    def all_max(self) -> FrequencyPlan | None:
        """Everything at its highest frequency, where what that takes is known."""
        ...

    def plan_at(self, time: float) -> FrequencyPlan:
        """The slowest plan of at most `time` seconds, which is no less than `time_min`."""
        ...


class Scheduler(Protocol):
    """Decides what is played. Replaying what happened to a new one brings it to the same state."""

    phase: str
    reason: str
    """Why it could not do better, for people; empty where it could."""

    @property
    def solution(self) -> Solution | None:
        """The plans it chooses from, as soon as there are any."""

    def check(self, rank: int, digest: Digest) -> None:
        """Raises a Refusal where a report lacks what this scheduler needs now."""

    def observe(self, turn: Turn, reports: Mapping[int, Sequence[Digest]]) -> None:
        """A turn is over; what each rank reported of it."""

    def notify(self, notice: Notice | None) -> None:
        """A straggler appeared, or (None) is over."""

    @property
    def unsolved(self) -> bool:
        """Whether there is long work to do."""

    def solve(self) -> None:
        """Does the long work; runs in a thread of its own while nothing else of this scheduler is called but `turn`."""

    def turn(self) -> Turn:
        """What is played next."""

    def frequencies(self, turn: Turn, rank: int) -> Frequencies:
        """What a rank plays in a turn."""

    def played(self, turn: Turn, rank: int) -> FrequencyPlan | None:
        """The plan that a rank plays in a turn, where it plays one."""

    def drawn(self, plan: FrequencyPlan) -> Timeline:
        """When everything would run by one of the solution's plans."""


@dataclass(frozen=True)
class Roster:
    """A job as its scheduler sees it."""

    schedule: Schedule
    seats: Mapping[int, Seat]
    """Of every global rank."""
    available: Mapping[int, tuple[int, ...]]
    """MHz of every global rank, highest first."""
    device: str
    blocking_power: float | None

    @property
    def plan(self) -> Plan:
        return self.schedule.plan

    def local_rank(self, rank: int) -> int:
        return self.seats[rank].local_rank(self.plan)

    @cached_property
    def rows(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """For each local rank, kind and stage of its compute instructions."""
        return tuple(
            tuple((instruction.kind, instruction.stage) for instruction in row if instruction.kind in COMPUTE)
            for row in self.schedule.ranks
        )

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the global ranks that hold it, in any pipe and replica."""
        held: list[list[int]] = [[] for _ in self.plan.stages]
        for rank in sorted(self.seats):
            for stage in self.stages_of(rank):
                held[stage].append(rank)
        return tuple(map(tuple, held))

    @cached_property
    def _local_stages(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted({stage for _, stage in row})) for row in self.rows)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        return self._local_stages[self.local_rank(rank)]

    def highest(self, rank: int) -> Frequencies:
        """A rank's instructions at its highest frequency."""
        top = self.available[rank][0]
        return [(kind, top) for kind, _ in self.rows[self.local_rank(rank)]]

    def of_plan(self, plan: FrequencyPlan, rank: int) -> Frequencies:
        """A rank's part of a plan."""
        return self.row_of(plan, self.local_rank(rank))

    def row_of(self, plan: FrequencyPlan, local: int) -> Frequencies:
        """A local rank's part. A plan with a row per place is played alike by all ranks of a place."""
        rows = plan.frequencies
        return computed(rows[self.places[local] if len(rows) == self.plan.places else local])

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Of each local rank."""
        places = enumerate(self.plan.stages[: self.plan.places])
        return tuple(place for place, stage in places for _ in range(stage.team_size))


def computed(row: Iterable[tuple[str, int]]) -> Frequencies:
    """What of a plan's row goes over the wire: computations, which are what a client announces."""
    return [(kind, frequency) for kind, frequency in row if kind in COMPUTE]
