"""What a frontier's plans save against every clock at its maximum, and what rounding to real clocks loses against the
frontier. Compares; finds nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import Frontier

FACTORS = (1.0, 1.05, 1.1, 1.2)
"""How slow the slowest replica is: 1 is nobody, and the plan is the fastest."""


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
