"""A curve: what it costs to run an operation in a given time, as a falling convex line through whole-numbered points.
The frontier is computed on curves and on nothing else.

The cost of a choice is the energy it takes beyond waiting for as long: ranks x (energy - blocking power x time). Time
is counted in ticks and slopes in nanowatts, so that sums are exact and equal paths are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from halocline.energy.frontier.choices import Choices

TICKS = 10**12
"""Ticks in a second. Durations are rounded up, so that what fits in ticks fits in seconds."""

WATT = 10**9
"""Slopes are whole nanowatts."""


class Curve(NamedTuple):
    """Cost over time, straight between its points."""

    times: tuple[int, ...]
    """Ticks, rising: from the fastest choice to the cheapest."""
    costs: tuple[float, ...]
    """Joules, falling."""
    slopes: tuple[int, ...]
    """Nanowatts, strictly falling: what each piece saves per second of its length."""

    def cost(self, ticks: float) -> float:
        """The cost of a duration; the cheapest's beyond it."""
        for number, slope in enumerate(self.slopes):
            if ticks < self.times[number + 1]:
                return self.costs[number] - slope * (ticks - self.times[number]) / (WATT * TICKS)
        return self.costs[-1]


def ticks_of(seconds: float) -> int:
    return math.ceil(seconds * TICKS)


def hull(choices: Choices, ranks: int, blocking_power: float) -> Curve:
    """The lower convex hull of the choices: no mixture of choices costs less than it."""
    return convex((ticks_of(c.time), effective_cost(c.time, c.energy, ranks, blocking_power)) for c in choices)


def effective_cost(time: float, energy: float, ranks: int, blocking_power: float) -> float:
    """Joules beyond waiting, of all ranks together."""
    return ranks * (energy - blocking_power * time)


def convex(points: Iterable[tuple[int, float]]) -> Curve:
    """The falling lower hull of (ticks, joules), from the fastest point to the cheapest."""
    kept: list[tuple[int, float]] = []
    slopes: list[int] = []
    for point in sorted(points):
        if kept:
            if point[1] >= kept[-1][1]:
                continue  # slower and no cheaper
            while slopes and _slope(kept[-1], point) >= slopes[-1]:
                kept.pop()
                slopes.pop()
            slope = _slope(kept[-1], point)
            if not slope:
                continue  # cheaper by less than slopes can tell
            slopes.append(slope)
        kept.append(point)
    return Curve(tuple(t for t, _ in kept), tuple(c for _, c in kept), tuple(slopes))


def _slope(left: tuple[int, float], right: tuple[int, float]) -> int:
    return round((left[1] - right[1]) * WATT * TICKS / (right[0] - left[0]))
