"""A curve: what it costs to run an operation in a given time, as a falling convex line through whole-numbered points.
The frontier is computed on curves and on nothing else.

The cost of a choice is the energy it takes beyond waiting for as long: ranks x (energy - blocking power x time). Time
is counted in ticks and slopes in nanowatts, so that sums are exact and equal paths are equal.

`hull` takes the choices as they are. `exponential` is the cost model of the Perseus paper, for comparison: it floors
times to a unit, keeps the choices that no other beats in both time and energy, and fits a exp(b t) + c to their cost;
every whole unit is a point of it. The published frontiers were computed with it. Its floored times are shorter than the
real ones, so its fastest iterations cannot be had; `hull` has neither flaw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from halocline.energy.frontier.choices import Choice, Choices

TICKS = 10**12
"""Ticks in a second. Durations are rounded up, so that what fits in ticks fits in seconds."""

WATT = 10**9
"""Slopes are whole nanowatts."""

_STEEPEST, _FLATTEST = 50.0, 1e-6
"""The decay over the whole range of times is searched between these; outside them it is a step, or a straight line."""

_MOST_UNITS = 20_000
"""Between an operation's fastest and slowest time. With more, a frontier takes hours and shows nothing new."""


class Curve(NamedTuple):
    """Cost over time, straight between its points."""

    times: tuple[int, ...]
    """Ticks, rising: from the fastest choice to the cheapest."""
    costs: tuple[float, ...]
    """Joules, falling."""
    slopes: tuple[int, ...]
    """Nanowatts, strictly falling: what each piece saves per second of its length."""


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


# -- the exponential cost model --------------------------------------------------------------------------------------


def exponential(choices: Choices, ranks: int, blocking_power: float, unit: float) -> Curve:
    """The curve through a point per unit of time (`unit` in seconds)."""
    kept = candidates(choices, unit)
    times = [units(choice, unit) for choice in kept]
    if not times[0]:
        raise ValueError(
            f"unit time {unit:g} s is longer than an instruction of {kept[0].time:g} s: "
            f"use {kept[0].time / 20:.1g} s or less"
        )
    if times[-1] - times[0] > _MOST_UNITS:
        span = kept[-1].time - kept[0].time
        raise ValueError(
            f"unit time {unit:g} s cuts the {span:g} s between an instruction's choices into more than {_MOST_UNITS} "
            f"units: use {span / 1000:.1g} s or more"
        )
    costs = [effective_cost(time * unit, choice.energy, ranks, blocking_power) for time, choice in zip(times, kept)]
    fitted = fit(times, costs)
    tick = round(unit * TICKS)
    if fitted is None:
        return convex((time * tick, cost) for time, cost in zip(times, costs))
    return convex((time * tick, fitted(time)) for time in range(min(times), max(times) + 1))


def units(choice: Choice, unit: float) -> int:
    """A choice's time in whole units, floored."""
    return int(choice.time // unit)


def candidates(choices: Choices, unit: float) -> list[Choice]:
    """What no other choice beats in both time and energy; of equal floored times the one with the most energy, whose
    real time is the nearest."""
    kept = [c for c in choices if not any(o.time < c.time and o.energy < c.energy for o in choices)]
    best: dict[int, Choice] = {}
    for choice in sorted(kept, key=lambda choice: choice.energy):
        best[units(choice, unit)] = choice
    return [best[time] for time in sorted(best)]


def fit(times: Sequence[int], costs: Sequence[float]) -> Callable[[float], float] | None:
    """The least-squares a exp(b t) + c, or None where no falling convex one fits.

    For a given b the best a and c follow from a linear fit, and so does the slope of the error in b: only b is searched
    for, first on a grid, then by bisection of that slope."""
    if len(times) < 3:
        return None
    start, span = times[0], times[-1] - times[0]
    count = 40
    decays = [_FLATTEST * (_STEEPEST / _FLATTEST) ** (i / count) for i in range(count + 1)]
    scaled = [(time - start) / span for time in times]
    errors = [_linear(decay, scaled, costs)[2] for decay in decays]
    best = min(range(count + 1), key=errors.__getitem__)
    if best in (0, count):
        return None
    low, high = decays[best - 1], decays[best + 1]
    for _ in range(50):
        middle = (low + high) / 2
        if _linear(middle, scaled, costs)[3] > 0:
            high = middle
        else:
            low = middle
    decay = (low + high) / 2
    a, c, _, _ = _linear(decay, scaled, costs)
    if a <= 0:
        return None
    return lambda time: a * math.exp(-decay * (time - start) / span) + c


def _linear(decay: float, times: Sequence[float], costs: Sequence[float]) -> tuple[float, float, float, float]:
    """a, c, the squared error and its slope in the decay, of the best a exp(-decay t) + c."""
    basis = [math.exp(-decay * time) for time in times]
    count = len(times)
    mean, level = sum(basis) / count, sum(costs) / count
    centred = [x - mean for x in basis]
    a = sum([x * (y - level) for x, y in zip(centred, costs)]) / sum([x * x for x in centred])
    c = level - a * mean
    rest = [y - a * x - c for x, y in zip(basis, costs)]
    error = sum([r * r for r in rest])
    slope = 2 * a * sum([r * x * t for r, x, t in zip(rest, basis, times)])
    return a, c, error, slope
