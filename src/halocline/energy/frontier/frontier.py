"""The frontier: the least energy of an iteration for every time it may take, of any schedule and plan, and a frequency
plan for each; what the plans save against every clock at its maximum, and the plan for a straggler's own replica.
Reads schedules and profiles; knows nothing of devices.

From T_min, the fastest iteration, to T*, in which every operation is as slow as pays. The energy counts every rank of
every replica: what its operations take, and the blocking power while it waits. Beyond T* the ranks only wait longer.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from halocline.energy.frontier.choices import Choice
from halocline.energy.frontier.curve import TICKS, WATT
from halocline.energy.frontier.flow import Network, PathSearch, Vertex, network_of
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.rounding import COSTS, Pick, Pricing
from halocline.energy.profile.table import MOST, ProfileTable
from halocline.plan.plan import Plan
from halocline.plan.require import require_choice
from halocline.schedule.generate import generate
from halocline.schedule.instruction import Schedule

_MOST_KEPT = 1 << 25
"""Moments kept for plans (8 bytes each). Beyond it every other solution is dropped and plans fall between the rest."""

_MOST_FACTOR = 1000
"""Who is slower than this is not a straggler but gone."""

_GOOD = 0.0015
"""A plan's loss against the optimum that is not worth another try."""

FACTORS = (1.0, 1.05, 1.1, 1.2)
"""How slow the slowest replica is: 1 is nobody, and the plan is the fastest."""


class Point(NamedTuple):
    """A corner of the frontier, which is straight between its corners."""

    time: float
    """Seconds."""
    energy: float
    """Joules of all ranks of all replicas."""


def solve(
    schedule: Schedule | Plan,
    profile: ProfileTable,
    blocking_power: float,
    cost: str = "hull",
    *,
    unit_time: float = 0.001,
    latency: float = 0.0,
) -> Frontier:
    """The whole frontier of a schedule, or of a plan's schedule.

    `blocking_power`: what a waiting rank takes, in watts. `cost`: hull (real times, convex hull of the choices'
    effective cost) or exponential (the Perseus paper's model, with times floored to `unit_time` seconds). `latency`:
    seconds that a message takes."""
    require_choice("cost", cost, COSTS)
    _require("blocking power", blocking_power, "watts of a waiting rank")
    _require("latency", latency, "seconds of a message")
    _require("unit time", unit_time, "seconds, e.g. 0.001", above=True)
    if isinstance(schedule, Plan):
        schedule = generate(schedule)
    pricing = Pricing(schedule, profile, blocking_power, latency, unit_time if cost == "exponential" else None)
    network = network_of(pricing.graph, pricing.curves, pricing.latency)
    if network.moments[network.sink] >= 1 << 62:
        raise ValueError(f"the iteration takes {network.moments[network.sink] / TICKS:g} s: give times in seconds")
    cheapest = sum(curve.costs[-1] for curve in pricing.curves)
    corners: list[Point] = []
    kept: list[Vertex] = []
    stride = 1
    for number, vertex in enumerate(PathSearch(network).vertices()):
        time = vertex.time / TICKS
        corners.append(Point(time, cheapest + vertex.rise / (WATT * TICKS) + pricing.waiting_power * time))
        if number % stride == 0:
            kept.append(vertex)
        if len(kept) * len(network.moments) > _MOST_KEPT and len(kept) > 2:
            kept, stride = kept[::2], 2 * stride
    if kept[-1] is not vertex:
        kept.append(vertex)
    return Frontier(schedule, tuple(reversed(corners)), cost, profile.note, pricing, network, tuple(reversed(kept)))


@dataclass(frozen=True, eq=False)
class Frontier:
    """Least energy over time, and plans that come near it."""

    schedule: Schedule
    points: tuple[Point, ...]
    """The corners, from the fastest iteration to the cheapest durations."""
    cost: str
    """hull or exponential."""
    note: str
    """The profile's, e.g. "simulated"."""
    pricing: Pricing
    _network: Network
    _solutions: tuple[Vertex, ...]
    """Optimal moments at (at least some of) the points, rising in time."""

    @property
    def time_min(self) -> float:
        """Seconds of the fastest iteration."""
        return self.points[0].time

    @property
    def time_star(self) -> float:
        """Seconds of the iteration in which every operation is as slow as pays; beyond it ranks only wait."""
        return self.points[-1].time

    @property
    def blocking_power(self) -> float:
        """Watts of a waiting rank."""
        return self.pricing.blocking_power

    @cached_property
    def least(self) -> Point:
        """Where an iteration takes the least energy. Slower ones pay only where a straggler makes all wait anyway."""
        return min(self.points, key=lambda point: point.energy)

    def energy_at(self, time: float) -> float:
        """The least energy of an iteration of so many seconds, between corners and beyond them."""
        self._require_time(time)
        number = bisect_left(self.points, time, key=lambda point: point.time)
        if number == len(self.points):
            last = self.points[-1]
            return last.energy + self.pricing.waiting_power * (time - last.time)
        right = self.points[number]
        if number == 0:
            return right.energy
        left = self.points[number - 1]
        return left.energy + (right.energy - left.energy) * (time - left.time) / (right.time - left.time)

    def sampled(self, step: float) -> list[Point]:
        """The frontier every `step` seconds from T_min on, and at T*."""
        count = math.ceil((self.time_star - self.time_min) / step - 1e-6)
        times = [round(self.time_min + number * step, 12) for number in range(count)]
        return [*(Point(time, self.energy_at(time)) for time in times), self.points[-1]]

    def plan_at(self, time: float) -> FrequencyPlan:
        """The plan of the least energy (but for rounding) that takes no longer than `time` seconds.

        Under the exponential cost it is what that model's durations come to on real clocks, which may take longer."""
        self._require_time(time)
        pricing = self.pricing
        moments = self._moments(time)
        begins = [moments[node] for node in self._network.begins]
        ends = [moments[node] for node in self._network.ends]
        if self.cost == "exponential":
            picks = pricing.floored(begins, ends)
        else:
            waiting = pricing.waiting_power * time
            energy = self.energy_at(time)
            picks = pricing.rounder.round(begins, ends, max(moments), energy * (1 + _GOOD) - waiting)
        return self._plan(time, picks)

    @cached_property
    def all_max(self) -> FrequencyPlan:
        """Every instruction at its highest frequency: what training does when nobody sets clocks."""
        return self.plan_of([choices[0] for choices in self.pricing.choices])

    def plan_of(self, chosen: Sequence[Choice]) -> FrequencyPlan:
        """The plan of choices that somebody else made, one for each operation (out of `pricing.choices`)."""
        picks = self.pricing.picked(chosen)
        return self._plan(self.pricing.rounder.makespan(picks) / TICKS, picks)

    def straggler(self, factor: float) -> FrequencyPlan:
        """The plan while another replica makes every iteration take `factor` x T_min."""
        if not 1 <= factor <= _MOST_FACTOR:
            raise ValueError(
                f"straggler factor {factor:g} is not from 1 to {_MOST_FACTOR}: it is slower than T_min, e.g. 1.2"
            )
        return self.plan_at(factor * self.time_min)

    def waiting_energy(self, plan: FrequencyPlan, time: float) -> float:
        """What a plan takes if the iteration lasts `time` seconds because somebody else is slower."""
        return plan.energy + self.pricing.waiting_power * max(0.0, time - plan.time)

    def as_dict(self) -> dict[str, Any]:
        """The curve and its marks, for JSON."""
        plan = self.schedule.plan
        return {
            "schedule": plan.schedule,
            "stages": len(plan.stages),
            "microbatches": plan.microbatches,
            "processes": plan.world_size,
            "cost": self.cost,
            "blocking_power": self.blocking_power,
            "note": self.note,
            "time_min": self.time_min,
            "time_star": self.time_star,
            "least": list(self.least),
            "all_max": [self.all_max.time, self.all_max.energy],
            "points": [list(point) for point in self.points],
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict())

    # -- inside ----------------------------------------------------------------------------------------------------

    def _require_time(self, time: float) -> None:
        if not time >= self.time_min * (1 - 1e-12):
            raise ValueError(f"no iteration takes {time:g} s: the fastest takes {self.time_min:g} s, give that or more")

    def _moments(self, time: float) -> Sequence[int]:
        """An optimal solution for so many seconds: between corners, the mixture of the two on either side."""
        solutions = self._solutions
        number = bisect_left(solutions, time, key=lambda vertex: vertex.time / TICKS)
        if number == len(solutions):
            return solutions[-1].moments
        right = solutions[number]
        if number == 0 or right.time / TICKS == time:
            return right.moments
        left = solutions[number - 1]
        part, whole = max(0, math.floor(time * TICKS) - left.time), right.time - left.time
        return [a + (b - a) * part // whole for a, b in zip(left.moments, right.moments)]

    def _plan(self, deadline: float, picks: Sequence[Pick]) -> FrequencyPlan:
        pricing = self.pricing
        time = pricing.rounder.makespan(picks) / TICKS
        energy = sum(pick.cost for pick in picks) + pricing.waiting_power * time
        return FrequencyPlan(deadline, time, energy, pricing.frequencies(picks), self.note)


def _require(name: str, value: float, what: str, above: bool = False) -> None:
    if not (value > 0 if above else value >= 0) or value > MOST:
        least = "above 0" if above else "of at least 0"
        raise ValueError(f"{name} = {value:g} is not a number {least} and up to {MOST:g}: give {what}")


# -- what plans save -----------------------------------------------------------------------------------------------


class Saving(NamedTuple):
    """A plan beside all clocks at their maximum, in an iteration of the same length."""

    factor: float
    """How many times longer than the fastest the straggler takes; 1 without one."""
    time: float
    """Seconds of the iteration: the straggler's, or else the plan's own."""
    baseline_time: float
    """Seconds it takes with all clocks at their maximum."""
    baseline: float
    """Joules with all clocks at their maximum."""
    energy: float
    """Joules of the plan."""

    @property
    def saved(self) -> float:
        """The share of the energy that is saved."""
        return 1 - self.energy / self.baseline if self.baseline else 0.0

    @property
    def slowdown(self) -> float:
        """The share by which the iteration is longer than with all clocks at their maximum."""
        return self.time / self.baseline_time - 1 if self.baseline_time else 0.0


def savings(frontier: Frontier, factors: Sequence[float] = FACTORS) -> list[Saving]:
    """The saving without a straggler, and with ones that take `factor` times the fastest iteration. Who is done early
    waits for the straggler at blocking power, with a plan as without."""
    found = []
    for factor in factors:
        plan = frontier.straggler(factor)
        common = factor * frontier.time_min if factor > 1 else 0.0
        time, highest = max(plan.time, common), max(frontier.all_max.time, common)
        baseline = frontier.waiting_energy(frontier.all_max, highest)
        found.append(Saving(factor, time, highest, baseline, frontier.waiting_energy(plan, time)))
    return found


@dataclass(frozen=True)
class RoundingLoss:
    """How much more energy plans take than the frontier at their deadlines, as a share of it."""

    mean: float
    worst: float
    plans: int


def loss(frontier: Frontier, plan: FrequencyPlan) -> float:
    """What one plan takes beyond the frontier, if the iteration lasts until its deadline."""
    least = frontier.energy_at(plan.deadline)
    return frontier.waiting_energy(plan, plan.deadline) / least - 1 if least else 0.0


def rounding_loss(frontier: Frontier, plans: Sequence[FrequencyPlan]) -> RoundingLoss:
    losses = [loss(frontier, plan) for plan in plans]
    return RoundingLoss(sum(losses) / len(losses), max(losses), len(losses))


# -- a straggler's own replica -------------------------------------------------------------------------------------


def ease(
    schedule: Schedule, profile: ProfileTable, blocking_power: float, stages: Collection[int], goal: float
) -> FrequencyPlan | None:
    """The plan for a replica whose `stages` are so slow that an iteration takes `goal` seconds at its fastest. It
    delays nobody further, and lets all who wait for these stages run slower. None where no slowness of the stages gives
    that (they do not take part in the iteration)."""
    factor = slowness(schedule, profile, stages, goal)
    if factor is None:
        return None
    slowed = tuple(row._replace(time=row.time * factor) if row.stage in stages else row for row in profile.rows)
    frontier = solve(schedule, ProfileTable(slowed, profile.note), blocking_power)
    return frontier.plan_at(max(goal, frontier.time_min))


def slowness(schedule: Schedule, profile: ProfileTable, stages: Collection[int], goal: float) -> float | None:
    """How many times as long the instructions of `stages` take if an iteration takes `goal` seconds at its fastest."""
    pricing = Pricing(schedule, profile, 0.0, 0.0, None)
    fastest = [
        (curve.times[0], operation.instruction.stage in stages)
        for curve, operation in zip(pricing.curves, pricing.graph.operations)
    ]

    def makespan(factor: float) -> float:
        picks = [Pick(round(time * factor) if slow else time, 0.0, 0) for time, slow in fastest]
        return pricing.rounder.makespan(picks) / TICKS

    least, most = 1.0, 2.0
    while makespan(most) < goal:
        most *= 2
        if most > 1e6:
            return None
    for _ in range(50):
        middle = (least + most) / 2
        least, most = (middle, most) if makespan(middle) < goal else (least, middle)
    return least
