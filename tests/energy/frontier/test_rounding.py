"""Discrete plans: played instruction by instruction they take the time and energy they say, never more time than their
deadline, and hardly more energy than the frontier.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import Frontier, loss, rounding_loss, savings, solve
from halocline.energy.profile.table import ProfileTable, Row
from halocline.plan import Plan, Stage
from halocline.plan.layout import ACTIVATION
from halocline.schedule import Schedule
from halocline.schedule.instruction import BACKWARD, BACKWARD_INPUT, COMPUTE, FORWARD, SEND
from halocline.schedule.walk import walk

PROFILE = Path(__file__).parents[3] / "examples" / "profiles" / "gpt3-175b-a100.csv"
A100 = 83.64


def play(schedule: Schedule, plan: FrequencyPlan, profile: ProfileTable, power: float) -> tuple[float, float]:
    """Seconds and joules if every rank runs its list at the plan's frequencies, entry by entry."""
    ranks = range(len(schedule.ranks))
    left = [list(reversed(row)) for row in plan.frequencies]
    clock = [0.0 for _ in ranks]
    arrived: dict[tuple[object, ...], float] = {}
    used = 0.0
    for instruction, team in walk(schedule):
        kind, pipe, stage, microbatch, what, _ = instruction
        if kind == SEND:
            key = (what, pipe, stage + 1 if what == ACTIVATION else stage, microbatch)
            arrived[key] = max(arrived.get(key, 0.0), clock[team[0]])
        if kind not in COMPUTE:
            continue
        start = max(clock[rank] for rank in team)
        if kind in (FORWARD, BACKWARD, BACKWARD_INPUT):
            start = max(start, arrived.get(("activation" if kind == FORWARD else "gradient", *instruction[1:4]), 0.0))
        rows = set()
        for rank in team:
            named, frequency = left[rank].pop()
            assert named == kind
            half = 0.5 if kind.startswith("backward-") else 1.0
            name = "backward" if half < 1 else kind
            row = next(row for row in profile.of(stage, name) if row.frequency == frequency)
            rows.add(row)
            clock[rank] = start + half * row.time
            used += half * (row.energy - power * row.time)
        assert len(rows) == 1, "a team runs at one frequency"
    assert not any(left)
    replicas, time = schedule.plan.replicas, max(clock)
    return time, replicas * (used + power * len(clock) * time)


PLANS = {
    "1f1b": Plan.uniform(8, microbatches=12),
    "gems": Plan.uniform(8, schedule="gems", pipes=2, microbatches=4),
    "chimera": Plan.uniform(8, schedule="chimera", pipes=2, microbatches=8),
    "interleaved": Plan.uniform(8, schedule="interleaved", chunks=2, microbatches=8),
    "zb-h1": Plan.uniform(8, schedule="zb-h1", microbatches=10),
    "spatial": Plan(
        tuple(Stage((s, s + 1), tiles=(2, 2) if s == 0 else (1, 1)) for s in range(8)), "1f1b", 8, replicas=2
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_keep_their_word_and_come_near_the_frontier(name: str) -> None:
    profile = ProfileTable.read(PROFILE)
    frontier = solve(PLANS[name], profile, A100)
    points = frontier.points[:: max(1, len(frontier.points) // 12)]
    plans = [frontier.plan_at(point.time) for point in points]
    for plan, point in zip(plans, points):
        time, energy = play(frontier.schedule, plan, profile, A100)
        assert time <= plan.time * (1 + 1e-12) <= point.time * (1 + 1e-12)
        assert plan.time == pytest.approx(time, rel=1e-9)
        assert plan.energy == pytest.approx(energy, rel=1e-9)
        assert loss(frontier, plan) >= -1e-9, "nothing is below the frontier"
    rounding = rounding_loss(frontier, plans)
    assert rounding.mean <= 0.003
    assert rounding.worst <= 0.006


def test_plans_between_solutions_that_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large frontiers keep some of their solutions only; what lies between them is a mixture, and keeps its word."""
    profile, plan = ProfileTable.read(PROFILE), Plan.uniform(8, microbatches=6)
    every = solve(plan, profile, A100)
    monkeypatch.setattr("halocline.energy.frontier.frontier._MOST_KEPT", 10_000)
    some = solve(plan, profile, A100)
    assert some.points == every.points
    assert len(some._solutions) < len(every._solutions) / 4
    plans = [some.plan_at(point.time) for point in some.points]
    assert all(made.time <= point.time for made, point in zip(plans, some.points))
    assert rounding_loss(some, plans).worst <= 0.006


def test_all_clocks_at_maximum() -> None:
    profile = ProfileTable.read(PROFILE)
    frontier = solve(Plan.uniform(8, microbatches=6), profile, A100)
    assert {frequency for row in frontier.all_max.frequencies for _, frequency in row} == {1410}
    time, energy = play(frontier.schedule, frontier.all_max, profile, A100)
    assert (frontier.all_max.time, frontier.all_max.energy) == pytest.approx((time, energy))


@pytest.mark.parametrize("name", PLANS)
def test_choices_that_somebody_else_made(name: str) -> None:
    """Any choices become a plan that keeps its word; its critical path has no gap, and lasts as long as all of it."""
    profile, chance = ProfileTable.read(PROFILE), random.Random(name)
    frontier = solve(PLANS[name], profile, A100)
    pricing = frontier.pricing
    chosen = [chance.choice(choices) for choices in pricing.choices]
    plan = frontier.plan_of(chosen)
    assert (plan.time, plan.energy) == pytest.approx(play(frontier.schedule, plan, profile, A100))
    assert plan.energy >= frontier.energy_at(plan.time) * (1 - 1e-12), "nothing is below the frontier"
    picks = pricing.picked(chosen)
    path = pricing.rounder.critical(picks)[::-1]
    assert sum(picks[number].time for number in path) == pricing.rounder.makespan(picks)
    waits = {(edge.first, edge.then) for edge in pricing.graph.edges}
    assert set(pairwise(path)) <= waits


def random_case(seed: int, stages: int, frequencies: int) -> ProfileTable:
    chance = random.Random(seed)
    rows = []
    for stage in range(stages):
        for instruction, size in (("forward", 1.0), ("backward", 2.0)):
            size *= chance.uniform(0.5, 1.5)
            for number in range(frequencies):
                time = size * chance.uniform(0.8, 2.0)
                rows.append(Row(stage, instruction, 1500 - number, time, chance.uniform(5, 40) * time))
    return ProfileTable(tuple(rows))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(0, 1.2),
    st.floats(0, 40),
    st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
)
def test_any_profile_at_any_time(
    seed: int, stages: int, microbatches: int, frequencies: int, share: float, power: float, schedule: str
) -> None:
    """Profiles without rhyme or reason, blocking powers above what some choices take: deadlines still hold."""
    profile = random_case(seed, stages, frequencies)
    frontier = solve(Plan.uniform(stages, schedule=schedule, microbatches=microbatches), profile, power)
    deadline = frontier.time_min + share * (frontier.time_star - frontier.time_min)
    plan = frontier.plan_at(deadline)
    time, energy = play(frontier.schedule, plan, profile, power)
    assert time <= deadline * (1 + 1e-12)
    assert (plan.time, plan.energy) == pytest.approx((time, energy), rel=1e-9, abs=1e-9)
    assert frontier.waiting_energy(plan, deadline) >= frontier.energy_at(deadline) * (1 - 1e-9) - 1e-9


def test_a_straggler_lets_the_others_slow_down() -> None:
    frontier: Frontier = solve(Plan.uniform(8, microbatches=12), ProfileTable.read(PROFILE), A100)
    rows = savings(frontier)
    assert [row.factor for row in rows] == [1.0, 1.05, 1.1, 1.2]
    saved = [row.saved for row in rows]
    assert saved == sorted(saved)
    assert saved[0] == pytest.approx(0.159, abs=0.003), "Perseus's paper: 10 to 16% on models of this kind"
    assert saved[-1] == pytest.approx(0.273, abs=0.003)
    assert all(row.slowdown == pytest.approx(0, abs=1e-9) for row in rows)
    for row in rows:
        plan = frontier.straggler(row.factor)
        assert plan.time <= row.factor * frontier.time_min * (1 + 1e-12)
        waited = 8 * A100 * (row.time - plan.time)
        assert row.energy == pytest.approx(plan.energy + waited)
    beyond = frontier.straggler(10.0)
    assert beyond.time == pytest.approx(frontier.time_star)


def test_the_whole_frontier_loses_little() -> None:
    frontier = solve(Plan.uniform(8, microbatches=12), ProfileTable.read(PROFILE), A100)
    rounding = rounding_loss(frontier, [frontier.plan_at(point.time) for point in frontier.points])
    assert rounding.plans == len(frontier.points) > 500
    assert rounding.mean <= 0.0015
    assert rounding.worst <= 0.004
