"""The frontier against oracles: a linear program (scipy's HiGHS) for every schedule, brute force where there is little
to choose, lowtime on small instances, and the frontiers published with Perseus.

The linear program is built from the plan alone: choices mixed freely, data handed from stage to stage, and each rank's
computations in the order of its list. It shares no code with the solver.
"""

from __future__ import annotations

import itertools
import random
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from halocline.energy.frontier.frontier import Frontier, solve
from halocline.energy.profile.table import ProfileTable, Row
from halocline.plan import Plan, Stage
from halocline.schedule import Schedule, generate
from halocline.schedule.instruction import BACKWARD, BACKWARD_INPUT, COMPUTE, FORWARD

ROOT = Path(__file__).parents[3]
PROFILE = ROOT / "examples" / "profiles" / "gpt3-175b-a100.csv"
POWER = 7.0


def random_profile(stages: int, seed: int, frequencies: int = 6, extra: tuple[str, ...] = ()) -> ProfileTable:
    """Times and energies as GPUs have them, with noise, so that some choices are useless."""
    chance = random.Random(seed)
    rows = []
    for stage in range(stages):
        for instruction in ("forward", "backward", *extra):
            size = chance.uniform(0.5, 1.5) * (2 if instruction == "backward" else 1)
            for number in range(frequencies):
                speed = 1 - number / (frequencies + 2)
                time = size * (0.3 + 0.7 / speed) * chance.uniform(0.98, 1.02)
                energy = time * (10 + 30 * speed**2.5) * chance.uniform(0.98, 1.02)
                rows.append(Row(stage, instruction, 1500 - 100 * number, time, energy))
    return ProfileTable(tuple(rows))


def by_linear_program(schedule: Schedule, profile: ProfileTable, power: float, time: float, latency: float) -> float:
    """The least energy of an iteration of `time` seconds."""
    plan, layout = schedule.plan, schedule.layout
    last = len(plan.stages) - 1
    computed = {i for row in schedule.ranks for i in row if i.kind in COMPUTE}
    column: dict[Any, int] = {}
    costs: list[float] = []
    durations: dict[Any, list[tuple[int, float]]] = {}
    equal: list[tuple[int, int]] = []
    for number, instruction in enumerate(sorted(computed)):
        half = 0.5 if instruction.kind.startswith("backward-") else 1.0
        rows = profile.of(instruction.stage, "backward" if half < 1 else instruction.kind)
        team = len(layout.team(instruction.pipe, instruction.stage)) * plan.replicas
        column[instruction] = len(costs)
        costs.append(0.0)  # its start
        durations[instruction] = []
        for row in rows:
            durations[instruction].append((len(costs), row.time * half))
            equal.append((number, len(costs)))
            costs.append(team * half * (row.energy - power * row.time))

    above: list[tuple[int, int, float]] = []
    limits: list[float] = []

    def wait(first: Any, then: Any, least: float) -> None:
        """start(first) + duration(first) + least <= start(then), or the deadline for no then."""
        row = len(limits)
        above.append((row, column[first], 1.0))
        above.extend((row, at, length) for at, length in durations[first])
        if then is not None:
            above.append((row, column[then], -1.0))
        limits.append((time if then is None else 0.0) - least)

    for row in schedule.ranks:
        order = [i for i in row if i.kind in COMPUTE]
        for first, then in itertools.pairwise(order):
            wait(first, then, 0.0)
        wait(order[-1], None, 0.0)
    for i in computed:
        if i.kind == FORWARD and i.stage < last:
            then, below = i._replace(stage=i.stage + 1), i.stage
        elif i.kind in (BACKWARD, BACKWARD_INPUT) and i.stage:
            then, below = i._replace(stage=i.stage - 1), i.stage - 1
        else:
            continue
        apart = layout.team(i.pipe, below) != layout.team(i.pipe, below + 1)
        wait(i, then, latency if apart else 0.0)

    def matrix(entries: list[tuple[int, int, float]], height: int) -> Any:
        rows, columns, values = zip(*entries)
        return coo_matrix((values, (rows, columns)), shape=(height, len(costs)))

    mixed = linprog(
        costs,
        A_ub=matrix(above, len(limits)),
        b_ub=limits,
        A_eq=matrix([(row, at, 1.0) for row, at in equal], len(computed)),
        b_eq=np.ones(len(computed)),
        bounds=(0, None),
    )
    assert mixed.status == 0, mixed.message
    return float(mixed.fun) + plan.world_size * power * time


PLANS = {
    "1f1b": Plan.uniform(4, microbatches=6),
    "gpipe": Plan.uniform(3, schedule="gpipe", microbatches=4),
    "gems": Plan.uniform(4, schedule="gems", pipes=2, microbatches=4),
    "chimera": Plan.uniform(4, schedule="chimera", pipes=2, microbatches=4),
    "interleaved": Plan.uniform(4, schedule="interleaved", chunks=2, microbatches=4),
    "zb-h1": Plan.uniform(4, schedule="zb-h1", microbatches=6),
    "capped": Plan.uniform(3, schedule="capped", pipes=2, cap=2.0, microbatches=4),
    "spatial": Plan((Stage((0, 1), tiles=(2, 2)), Stage((1, 2), tiles=(1, 2)), Stage((2, 3))), "1f1b", 5),
    "gems-spatial": Plan((Stage((0, 1), tiles=(1, 3)), Stage((1, 2)), Stage((2, 3))), "gems", 4, pipes=2),
    "lanes-tensor-replicas": Plan((Stage((0, 1), tensor=2), Stage((1, 2), lanes=2)), "1f1b", 4, replicas=3),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_schedule_is_as_cheap_as_a_linear_program_can_make_it(name: str) -> None:
    plan = PLANS[name]
    latency = 0.13 if name in ("1f1b", "chimera", "spatial", "interleaved") else 0.0
    profile = random_profile(len(plan.stages), seed=len(name))
    schedule = generate(plan)
    frontier = solve(schedule, profile, POWER, latency=latency)
    assert frontier.time_min < frontier.time_star
    for share in (0.0, 0.02, 0.3, 0.7, 1.0):
        time = frontier.time_min + share * (frontier.time_star - frontier.time_min)
        # HiGHS itself holds constraints to 1e-7 only; the frontier is in picoseconds.
        expected = by_linear_program(schedule, profile, POWER, time + 1e-9, latency)
        assert frontier.energy_at(time) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(AssertionError, match="infeasible"):
        by_linear_program(schedule, profile, POWER, frontier.time_min * 0.999, latency)


def test_the_frontier_falls_and_bends_one_way() -> None:
    frontier = solve(Plan.uniform(4, microbatches=6), random_profile(4, 1), POWER)
    waiting = 4 * POWER
    cost = [energy - waiting * time for time, energy in frontier.points]
    times = [point.time for point in frontier.points]
    slopes = [(b - a) / (t - s) for a, b, s, t in zip(cost, cost[1:], times, times[1:])]
    assert all(slope < 0 for slope in slopes)
    assert all(left < right + 1e-6 for left, right in itertools.pairwise(slopes))
    assert frontier.energy_at(frontier.time_star + 2) == pytest.approx(frontier.points[-1].energy + 2 * waiting)
    assert frontier.least.energy == min(energy for _, energy in frontier.points)


def test_a_reduction_counts_when_it_was_measured() -> None:
    plan = Plan.uniform(2, microbatches=2, replicas=2)
    with_rows = random_profile(2, 3, extra=("reduce",))
    without = ProfileTable(tuple(row for row in with_rows.rows if row.instruction != "reduce"))
    plain, counted = solve(plan, without, POWER), solve(plan, with_rows, POWER)
    fastest = {stage: min(row.time for row in with_rows.of(stage, "reduce")) for stage in range(2)}
    assert counted.time_min > plain.time_min + min(fastest.values()) * 0.99
    assert [kind for kind, _ in counted.plan_at(counted.time_min).frequencies[0]][-1] == "reduce"
    assert [kind for kind, _ in plain.plan_at(plain.time_min).frequencies[0]][-1] == "backward"


def test_recomputation_is_an_operation_of_its_own_where_the_schedule_has_it() -> None:
    stages = (Stage((0, 1), recompute=True), Stage((1, 2)))
    profile = random_profile(2, 5, extra=("recompute",))
    early = solve(Plan(stages, "early-recompute-1f1b", 3), profile, POWER)
    assert [kind for kind, _ in early.all_max.frequencies[0]].count("recompute") == 3
    inside = solve(Plan(stages, "1f1b", 3), profile, POWER)
    assert early.time_min < inside.time_min, "what is recomputed early is not waited for"


def test_one_frequency_leaves_one_point() -> None:
    frontier = solve(Plan.uniform(3, microbatches=4), random_profile(3, 2, frequencies=1), POWER)
    assert len(frontier.points) == 1
    plan = frontier.plan_at(frontier.time_min)
    assert plan.frequencies == frontier.all_max.frequencies
    assert plan.energy == pytest.approx(frontier.all_max.energy)


@pytest.mark.parametrize("seed", range(4))
def test_brute_force_finds_nothing_below_the_frontier(seed: int) -> None:
    """All choices of all operations of 2 stages x 1 microbatch and of 1 x 2, each an iteration of some time and energy:
    none lies under the frontier, and the plans are among the best of them."""
    for stages, microbatches in ((2, 1), (1, 2)):
        profile = random_profile(stages, seed, frequencies=4)
        frontier = solve(Plan.uniform(stages, microbatches=microbatches), profile, POWER)
        order = [(s, "forward") for s in range(stages)] + [(s, "backward") for s in reversed(range(stages))]
        found = []
        for rows in itertools.product(*(profile.of(*key) for _ in range(microbatches) for key in order)):
            time = sum(row.time for row in rows)
            cost = sum(row.energy - POWER * row.time for row in rows)
            found.append((time, cost))
            assert cost + stages * POWER * time >= frontier.energy_at(time) * (1 - 1e-9)
        for share in (0.0, 0.2, 0.5, 0.9):
            deadline = frontier.time_min + share * (frontier.time_star - frontier.time_min)
            plan = frontier.plan_at(deadline)
            best = min(cost for time, cost in found if time <= deadline * (1 + 1e-12))
            assert plan.time <= deadline
            realised = plan.energy - stages * POWER * plan.time
            assert best - 1e-6 <= realised <= best + 0.04 * (best + stages * POWER * deadline)


# -- peers ---------------------------------------------------------------------------------------------------------


def published(microbatches: int) -> list[tuple[float, float]]:
    path = Path(__file__).parent / "data" / f"gpt3-175b-a100-frontier-{microbatches}.csv"
    lines = path.read_text().split()[1:]
    return [(float(time), float(energy)) for time, energy in (line.split(",") for line in lines)]


@pytest.mark.parametrize("microbatches", [12, 24])
def test_the_published_frontiers(microbatches: int) -> None:
    plan = Plan.uniform(8, microbatches=microbatches)
    frontier = solve(plan, ProfileTable.read(PROFILE), 83.64, "exponential", unit_time=0.001)
    points = published(microbatches)
    assert frontier.time_min == pytest.approx(min(time for time, _ in points), rel=1e-9)
    for time, energy in points:
        assert frontier.energy_at(time) == pytest.approx(energy, rel=1e-8)


def two_stages() -> ProfileTable:
    """The first and the last stage of the published profile, with every third frequency."""
    rows = [row for row in ProfileTable.read(PROFILE).rows if row.stage in (0, 7) and row.frequency % 45 == 15]
    return ProfileTable(tuple(row._replace(stage=min(row.stage, 1)) for row in rows))


def test_lowtime_finds_the_same_and_its_plans_take_no_less() -> None:
    lowtime_frontier = runpy.run_path(str(ROOT / "benchmarks" / "frontier_speed.py"))["lowtime_frontier"]
    profile, plan, power, unit = two_stages(), Plan.uniform(2, microbatches=4), 83.64, 0.001
    theirs = list(lowtime_frontier(profile, 2, 4, power, unit))
    assert len(theirs) > 50
    modelled: Frontier = solve(plan, profile, power, "exponential", unit_time=unit)
    for row in theirs:
        assert modelled.energy_at(row.time) == pytest.approx(row.energy, rel=1e-6)
    ours = solve(plan, profile, power)
    for row in theirs:
        if row.real_time >= ours.time_min:
            made = ours.plan_at(row.real_time)
            assert made.time <= row.real_time
            assert ours.waiting_energy(made, row.real_time) <= row.real_energy * (1 + 1e-9)


# -- input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocking_power": -1.0}, "blocking power = -1 is not a number of at least 0"),
        ({"blocking_power": float("nan")}, "blocking power = nan"),
        ({"blocking_power": 1e300}, r"blocking power = 1e\+300"),
        ({"cost": "cheap"}, "cost"),
        ({"cost": "exponential", "unit_time": 0.0}, "unit time = 0 is not a number above 0"),
        ({"latency": float("inf")}, "latency = inf"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    options = {"blocking_power": POWER, **arguments}
    with pytest.raises(ValueError, match=message):
        solve(Plan.uniform(1), random_profile(1, 0), **options)


def test_times_that_cannot_be_had() -> None:
    frontier = solve(Plan.uniform(2, microbatches=2), random_profile(2, 0), POWER)
    with pytest.raises(ValueError, match=r"no iteration takes 0.1 s: the fastest takes"):
        frontier.plan_at(0.1)
    with pytest.raises(ValueError, match="no iteration takes nan s"):
        frontier.energy_at(float("nan"))
    for factor in (0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"straggler factor {factor:g} is not from 1 to 1000"):
            frontier.straggler(factor)
