"""Curves: the hull of the measured choices against scipy's, and the paper's exponential against scipy's fit."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit, linprog

from halocline.energy.frontier.choices import Choice
from halocline.energy.frontier.curve import TICKS, candidates, convex, exponential, fit, hull, ticks_of, units
from halocline.energy.profile.table import ProfileTable

PROFILE = Path(__file__).parents[3] / "examples" / "profiles" / "gpt3-175b-a100.csv"

choices = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=8, unique_by=lambda pair: pair[0]
)


@settings(max_examples=60, deadline=None)
@given(choices, st.floats(0, 3))
def test_the_hull_is_the_cheapest_mixture(pairs: list[tuple[int, int]], power: float) -> None:
    """At any duration, the least cost of choices mixed to take at most as long (scipy's HiGHS)."""
    given_choices = tuple(Choice(100 + n, time / 10, float(energy)) for n, (time, energy) in enumerate(pairs))
    curve = hull(given_choices, 2, power)
    times = [choice.time for choice in given_choices]
    costs = [2 * (choice.energy - power * choice.time) for choice in given_choices]
    for at in np.linspace(min(times), max(times), 5):
        mixed = linprog(costs, A_ub=[times], b_ub=[at], A_eq=[[1.0] * len(times)], b_eq=[1.0], bounds=(0, 1))
        assert np.interp(at * TICKS, curve.times, curve.costs) == pytest.approx(mixed.fun, rel=1e-6, abs=1e-5)


@given(choices)
@settings(max_examples=60, deadline=None)
def test_a_curve_falls_and_its_slopes_too(pairs: list[tuple[int, int]]) -> None:
    curve = convex((time * TICKS, float(energy)) for time, energy in pairs)
    assert list(curve.times) == sorted(set(curve.times))
    assert all(left > right for left, right in zip(curve.costs, curve.costs[1:]))
    assert all(left > right > 0 for left, right in zip(curve.slopes, curve.slopes[1:]))
    assert len(curve.slopes) == len(curve.times) - 1


def test_slopes_that_cannot_be_told_apart_are_one() -> None:
    """Once the solver ran in circles on pieces of equal slope."""
    nearly = [(time * TICKS, 10.0 - time - 1e-11 * math.sqrt(time)) for time in range(1, 6)]
    curve = convex(nearly)
    assert len(curve.times) == 2 and len(curve.slopes) == 1
    assert convex([(TICKS, 5.0), (2 * TICKS, 5.0 - 1e-11)]).times == (TICKS,)


def test_ticks_never_promise_too_little_time() -> None:
    assert ticks_of(0.05) == 50_000_000_000
    for seconds in (1 / 3, 0.1, 1e-9, 123.456):
        assert ticks_of(seconds) / TICKS >= seconds * (1 - 1e-15)


def test_the_exponential_is_scipys() -> None:
    profile = ProfileTable.read(PROFILE)
    for stage in (0, 7):
        for instruction in ("forward", "backward"):
            measured = tuple(Choice(*row[2:]) for row in profile.of(stage, instruction))
            kept = candidates(measured, 0.001)
            times = [units(choice, 0.001) for choice in kept]
            costs = [choice.energy - 83.64 * time * 0.001 for choice, time in zip(kept, times)]
            ours = fit(times, costs)
            assert ours is not None
            theirs, _ = curve_fit(
                lambda t, a, b, c: a * np.exp(b * t) + c, np.array(times), costs, p0=[10, -0.01, 10], maxfev=50000
            )
            for time in times:
                assert ours(time) == pytest.approx(theirs[0] * math.exp(theirs[1] * time) + theirs[2], rel=1e-5)


def test_where_no_exponential_fits_the_hull_is_taken() -> None:
    few = (Choice(2, 0.0105, 3.0), Choice(1, 0.0155, 2.0))
    curve = exponential(few, 1, 0.0, 0.001)
    assert [time / TICKS for time in curve.times] == [0.010, 0.015]
    bent_the_other_way = tuple(Choice(10 - n, 0.0105 + n / 1000, 10.0 - n * n / 10) for n in range(6))
    assert exponential(bent_the_other_way, 1, 0.0, 0.001).times == (10 * TICKS // 1000, 15 * TICKS // 1000)


def test_a_unit_longer_than_an_instruction_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"unit time 1 s is longer than an instruction of 0.01 s: use 0.0005 s or less"
    ):
        exponential((Choice(1, 0.01, 3.0), Choice(2, 0.02, 2.0)), 1, 0.0, 1.0)
