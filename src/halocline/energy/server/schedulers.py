"""What a scheduler is, what it knows of a job (`Roster`), and what it decides (`Turn`); and the two that learn nothing,
all-max and point-solution. A scheduler decides turns from what was played before; it never waits, and it does long work
only when it is told to, so that the server can do it beside its answers.

A turn is what all ranks of a job play until they ask again, small enough to keep one for every round. The frequencies
themselves follow from it; after a restart the same turn gives the same frequencies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import TypeAdapter

from halocline.energy.client import Seat
from halocline.energy.frontier.choices import Menu
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import Frontier, Point
from halocline.energy.frontier.graph import graph_of
from halocline.energy.server.digest import Digest
from halocline.energy.server.timeline import TimelineBar, nominal_profile, timeline
from halocline.plan.plan import Plan
from halocline.schedule.instruction import COMPUTE, Schedule

Frequencies = list[tuple[str, int]]
"""The kind of each compute instruction of a rank, in order, and its MHz."""

ALL_MAX = "all-max"
PROFILING = "profiling"
SOLVING = "solving"
DEPLOYED = "deployed"
PLAYING = "playing"
FAILED = "failed"


@dataclass(frozen=True)
class Notice:
    """Somebody is slow: iterations take `factor` times the shortest, whatever the others do."""

    factor: float
    rank: int | None = None
    replica: int | None = None


@dataclass(frozen=True)
class Turn:
    """What is played in one round."""

    phase: str
    clocks: tuple[int, ...] | None = None
    """profiling: MHz of each stage. None outside of it, and while every rank runs at its highest."""
    time: float | None = None
    """The plan that is played: the slowest of at most this many seconds."""
    notice: Notice | None = None
    eased: bool = False
    """Whether the straggler's own replica plays a plan made for it (see `frontier.ease`)."""


TURN = TypeAdapter(Turn)
"""Turns as JSON, out and in."""


class GivenPlans:
    """A few plans to choose from, as from a frontier's."""

    all_max = None
    """Nobody knows what everything takes at its highest frequency."""

    def __init__(self, plans: Sequence[FrequencyPlan]) -> None:
        self.plans = tuple(sorted(plans, key=lambda plan: plan.time))

    @property
    def time_min(self) -> float:
        return self.plans[0].time

    @property
    def points(self) -> list[Point]:
        return [Point(plan.time, plan.energy) for plan in self.plans if plan.timed]

    def plan_at(self, time: float) -> FrequencyPlan:
        """The slowest plan of at most `time` seconds, which is no less than `time_min`."""
        return [plan for plan in self.plans if plan.time <= time * (1 + 1e-9)][-1]


class Scheduler:
    """Decides what is played; this one learns nothing and has no plans. Replaying what happened to a new one brings it
    to the same state."""

    phase: str
    reason = ""
    """Why it could not do better, for people; empty where it could."""
    solution: Frontier | GivenPlans | None = None
    """The plans it chooses from, as soon as there are any."""
    _plan_at: Callable[[float], FrequencyPlan]
    """The solution's."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._notice: Notice | None = None

    def check(self, rank: int, digest: Digest) -> None:
        """Raises a Refusal where a report lacks what this scheduler needs now."""

    def observe(self, turn: Turn, reports: Mapping[int, Sequence[Digest]]) -> None:
        """A turn is over; what each rank reported of it."""

    def notify(self, notice: Notice | None) -> None:
        """A straggler appeared, or (None) is over."""
        self._notice = notice

    @property
    def unsolved(self) -> bool:
        """Whether there is long work to do."""
        return False

    def solve(self) -> None:
        """Does the long work; runs in a thread of its own while nothing else of this scheduler is called but `turn`."""

    def turn(self) -> Turn:
        """What is played next."""
        raise NotImplementedError

    def frequencies(self, turn: Turn, rank: int) -> Frequencies:
        """What a rank plays in a turn: its part of a plan, or its highest frequency."""
        plan = self.played(turn, rank)
        if plan is not None:
            return self._roster.row_of(plan, rank)
        row = self._roster.rows[self._roster.local_rank(rank)]
        return [(kind, self._roster.available[rank][0]) for kind, _ in row]

    def played(self, turn: Turn, rank: int) -> FrequencyPlan | None:
        """The plan that a rank plays in a turn, where it plays one."""
        if turn.time is None or self.solution is None:
            return None
        return self._plan_at(self.solution.time_min if self._keeps_up(turn, rank) else turn.time)

    def drawn(self, plan: FrequencyPlan) -> list[TimelineBar]:
        """When everything would run by one of the solution's plans."""
        raise NotImplementedError

    @property
    def _factor(self) -> float:
        """How many times the shortest an iteration takes."""
        return self._notice.factor if self._notice else 1.0

    def _keeps_up(self, turn: Turn, rank: int) -> bool:
        """Whether a rank stays as fast as it can because slowing it would delay the straggler further: the straggler
        itself, and where there are other replicas to slow, its whole replica."""
        notice, roster = turn.notice, self._roster
        if notice is None:
            return False
        if notice.rank == rank:
            return True
        return notice.replica == roster.seats[rank].replica and roster.plan.replicas > 1


class AllMax(Scheduler):
    """all-max: every rank at its highest frequency, for ever. What everything else is measured against."""

    phase = ALL_MAX

    def turn(self) -> Turn:
        return Turn(ALL_MAX)


class PointSolution(Scheduler):
    """point-solution: plays plans that were made before. Of several it plays the fastest, and with a straggler the
    slowest that still meets it."""

    phase = PLAYING
    solution: GivenPlans

    def __init__(self, roster: Roster, plans: Sequence[FrequencyPlan]) -> None:
        super().__init__(roster)
        self.solution = GivenPlans([_fitted(plan, roster) for plan in plans])
        self._plan_at = self.solution.plan_at

    def turn(self) -> Turn:
        return Turn(PLAYING, time=self.solution.time_min * self._factor, notice=self._notice)

    def drawn(self, plan: FrequencyPlan) -> list[TimelineBar]:
        """The plans say when they end, and nothing of what is between: by nominal times."""
        rows = self._roster.rows_of(plan)
        known = {frequency for row in rows for _, frequency in row}
        menu = Menu(nominal_profile(known, len(self._roster.plan.stages)), self._roster.plan)
        bars = timeline(graph_of(self._roster.schedule), menu, rows)
        factor = plan.time / max(bar.end for bar in bars)
        return [bar._replace(start=bar.start * factor, end=bar.end * factor) for bar in bars]


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

    def row_of(self, plan: FrequencyPlan, rank: int) -> Frequencies:
        """A global rank's part. A plan with a row per place is played alike by all ranks of a place, one with a row per
        rank of a replica by all replicas."""
        rows, local = plan.frequencies, self.local_rank(rank)
        if len(rows) == self.plan.places:
            return computed(rows[self.places[local]])
        return computed(rows[local if len(rows) == self.plan.ranks_per_replica else rank])

    def rows_of(self, plan: FrequencyPlan) -> list[Frequencies]:
        """The whole plan, for each local rank of the first replica."""
        ranks = {self.local_rank(rank): rank for rank, seat in self.seats.items() if seat.replica == 0}
        return [self.row_of(plan, ranks[local]) for local in range(len(self.rows))]

    def owners(self, rows: int) -> list[int]:
        """For each of so many rows of a plan, a local rank that plays it; none where the plan is not for this job."""
        plan = self.plan
        if rows == plan.places:
            return [self.places.index(place) for place in range(rows)]
        if rows == plan.ranks_per_replica:
            return list(range(rows))
        return [self.local_rank(rank) for rank in range(rows)] if rows == plan.world_size else []

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Of each local rank."""
        places = enumerate(self.plan.stages[: self.plan.places])
        return tuple(place for place, stage in places for _ in range(stage.team_size))


def computed(row: Iterable[tuple[str, int]]) -> Frequencies:
    """What of a row goes over the wire: computations, named or not, which are what a client announces."""
    return [(kind, frequency) for kind, frequency in row if kind in COMPUTE or not kind]


def _fitted(plan: FrequencyPlan, roster: Roster) -> FrequencyPlan:
    """A given plan whose rows are those of the job, with the names of its instructions where it has none."""
    rows, job = plan.frequencies, roster.plan
    which = f"the plan of {plan.time:g} s" if plan.timed else "the plan"
    owners = roster.owners(len(rows))
    if not owners:
        raise ValueError(
            f"{which} has {len(rows)} rows and the job {job.places} places, {job.ranks_per_replica} ranks in a replica "
            f"and {job.world_size} in all: give plans made for this job"
        )
    fitted = []
    for number, (row, local) in enumerate(zip(rows, owners)):
        kinds = [kind for kind, _ in roster.rows[local]]
        mine = computed(row)
        if len(mine) != len(kinds) or any(kind not in ("", own) for (kind, _), own in zip(mine, kinds)):
            raise ValueError(
                f"row {number} of {which} has {len(mine)} instructions that are not the {len(kinds)} of the job's "
                f"schedule {job.schedule} with {job.microbatches} microbatches: give plans made for this job"
            )
        fitted.append(tuple((own, frequency) for own, (_, frequency) in zip(kinds, mine)))
    return replace(plan, frequencies=tuple(fitted))
