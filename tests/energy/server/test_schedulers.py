"""The schedulers by themselves, without a server: what they ask for, what they learn, and what they then play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from halocline.energy.client import Seat, job_degrees
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import ease, slowness, solve
from halocline.energy.server.digest import Digest
from halocline.energy.server.instruction_profiler import InstructionProfiler
from halocline.energy.server.job import make_scheduler
from halocline.energy.server.schedulers import (
    DEPLOYED,
    FAILED,
    PROFILING,
    SOLVING,
    TURN,
    Notice,
    PointSolution,
    Roster,
    Turn,
)
from halocline.energy.server.settings import SCHEDULERS, ServerSettings, scheduler_named
from halocline.plan.plan import Plan
from halocline.plan.stage import Stage
from halocline.schedule.generate import generate
from halocline.schedule.instruction import COMPUTE
from harness.serving import BLOCKING, FREQUENCIES, law, profile

PLANS = {
    "pp": Plan.uniform(3, microbatches=4),
    "pp, dp, tp": Plan(tuple(Stage((s, s + 1), tensor=2) for s in range(2)), microbatches=4, replicas=3),
    "gems": Plan.uniform(2, schedule="gems", pipes=2, microbatches=4),
    "interleaved": Plan.uniform(4, schedule="interleaved", chunks=2, microbatches=4),
    "zero bubble": Plan.uniform(2, schedule="zb-h1", microbatches=4),
    "tiles": Plan((Stage((0, 1), (2, 2)), Stage((1, 2))), microbatches=3),
}


def roster_of(plan: Plan, power: float | None = BLOCKING, available: Sequence[int] = FREQUENCIES) -> Roster:
    ranks = range(plan.world_size)
    return Roster(
        schedule=generate(plan),
        seats={rank: Seat.of(plan, rank) for rank in ranks},
        available={rank: tuple(available) for rank in ranks},
        device="simulated",
        blocking_power=power,
    )


def reports_of(scheduler: InstructionProfiler, roster: Roster, turn: Turn) -> dict[int, list[Digest]]:
    """What ranks report that live by the law."""
    found = {}
    for rank in roster.seats:
        row = roster.rows[roster.local_rank(rank)]
        played = scheduler.frequencies(turn, rank)
        assert [kind for kind, _ in played] == [kind for kind, _ in row]
        parts = {(stage, kind): law(stage, kind, f) for (kind, stage), (_, f) in zip(row, played)}
        runs = [law(stage, kind, f) for (kind, stage), (_, f) in zip(row, played)]
        busy, spent = sum(t for t, _ in runs), sum(e for _, e in runs)
        times = {part: time for part, (time, _) in parts.items()}
        energies = {part: energy for part, (_, energy) in parts.items()}
        whole = busy + 0.5
        found[rank] = [Digest(1, whole, spent + BLOCKING * 0.5, times, energies, busy, spent)]
    return found


def swept(roster: Roster, **settings: Any) -> tuple[InstructionProfiler, list[Turn]]:
    """A profiler after its sweep, and the turns that took."""
    scheduler = InstructionProfiler(roster, ServerSettings(**settings))
    turns = []
    while scheduler.phase == PROFILING:
        turns.append(scheduler.turn())
        scheduler.observe(turns[-1], reports_of(scheduler, roster, turns[-1]))
        assert len(turns) < 40
    return scheduler, turns


# -- seats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_rank_has_a_seat_of_its_own_and_plays_its_own_list(plan: Plan) -> None:
    seats = [Seat.of(plan, rank) for rank in range(plan.world_size)]
    assert len(set(seats)) == plan.world_size
    for rank, seat in enumerate(seats):
        assert seat.local_rank(plan) == rank % plan.ranks_per_replica
    degrees = job_degrees(plan)
    assert degrees["world_size"] == plan.world_size and degrees["dp_degree"] == plan.replicas


# -- the instruction profiler --------------------------------------------------------------------------------------


def test_the_sweep_goes_down_from_the_highest_and_stops_where_energy_no_longer_falls() -> None:
    roster = roster_of(PLANS["pp"])
    _, turns = swept(roster, patience=1)
    clocks = [turn.clocks for turn in turns]
    assert clocks[0] == (1400,) * 3
    cost = {f: sum(e - BLOCKING * t for t, e in (law(0, k, f) for k in ("forward", "backward"))) for f in FREQUENCIES}
    best = FREQUENCIES.index(min(cost, key=cost.__getitem__))
    assert best < len(FREQUENCIES) - 2  # or nothing would be shown here
    assert clocks == [(f,) * 3 for f in FREQUENCIES[: best + 2]]


def test_a_stage_that_is_done_does_not_slow_the_others() -> None:
    roster = roster_of(PLANS["pp"])
    scheduler = InstructionProfiler(roster, ServerSettings(patience=1))
    for round in range(2):
        turn = scheduler.turn()
        found = reports_of(scheduler, roster, turn)
        if round:  # at the second frequency stage 0 alone costs more
            digest = found[0][0]
            found[0] = [replace(digest, energies={part: 10 * e for part, e in digest.energies.items()})]
        scheduler.observe(turn, found)
    assert scheduler.turn().clocks == (1400, 1000, 1000)


def test_bounds_of_the_sweep() -> None:
    _, turns = swept(roster_of(PLANS["pp"]), lowest_frequency=800, stride=2)
    assert [turn.clocks[0] for turn in turns if turn.clocks] == [1400, 1000]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_sweep_solve_deploy(plan: Plan) -> None:
    roster = roster_of(plan)
    scheduler, turns = swept(roster, patience=9)
    assert len(turns) == len(FREQUENCIES) and scheduler.phase == SOLVING and scheduler.unsolved
    assert scheduler.turn() == Turn(SOLVING)  # meanwhile: the highest
    assert {f for _, f in scheduler.frequencies(Turn(SOLVING), 0)} == {1400}
    scheduler.solve()
    assert (scheduler.phase, scheduler.reason, scheduler.unsolved) == (DEPLOYED, "", False)
    # The same as the frontier of what the law says, computed apart.
    measured = scheduler.profile
    assert measured is not None and measured.note == "simulated"
    for row in measured.rows:
        assert (row.time, row.energy) == pytest.approx(law(row.stage, row.instruction, row.frequency))
    frontier = solve(plan, measured, BLOCKING)
    turn = scheduler.turn()
    fastest = frontier.plan_at(frontier.time_min)
    for rank in range(plan.world_size):
        row = fastest.frequencies[rank % plan.ranks_per_replica]
        assert scheduler.frequencies(turn, rank) == [(k, f) for k, f in row if k in COMPUTE]
    assert fastest.energy < frontier.all_max.energy
    # A turn that was kept gives the same frequencies.
    assert TURN.validate_json(TURN.dump_json(turn)) == turn


def test_a_profile_of_ranks_is_their_slowest_time_and_mean_energy() -> None:
    roster = roster_of(PLANS["pp, dp, tp"])
    scheduler = InstructionProfiler(roster, ServerSettings())
    turn = scheduler.turn()
    found = reports_of(scheduler, roster, turn)
    slow = found[1][0]
    found[1] = [replace(slow, times={part: 2 * t for part, t in slow.times.items()})]
    cheap = found[4][0]
    found[4] = [replace(cheap, energies={part: 0.0 for part in cheap.energies})]
    scheduler.observe(turn, found)
    table = scheduler.profile
    assert table is not None
    time, energy = law(0, "forward", 1400)
    (row,) = table.of(0, "forward")
    # Stage 0 is held by ranks 0, 1, 4, 5, 8 and 9.
    assert (row.time, row.energy) == pytest.approx((2 * time, energy * 5 / 6))


def test_a_round_nobody_reported_is_played_again() -> None:
    scheduler = InstructionProfiler(roster_of(PLANS["pp"]), ServerSettings())
    turn = scheduler.turn()
    scheduler.observe(turn, {})
    assert scheduler.turn() == turn


def test_the_blocking_power_is_estimated_where_nobody_tells_it() -> None:
    scheduler, _ = swept(roster_of(PLANS["pp"], power=None))
    assert scheduler.blocking_power == pytest.approx(BLOCKING)


def test_devices_without_a_common_frequency_are_refused() -> None:
    roster = roster_of(PLANS["pp, dp, tp"])
    mixed = replace(roster, available={**roster.available, 4: (777,)})
    with pytest.raises(ValueError, match=r"stage 0 .*in common"):
        make_scheduler("instruction-profiler", mixed, ServerSettings())
    # At the highest frequency each runs at its own.
    all_max = make_scheduler("all-max", mixed, ServerSettings())
    assert {f for _, f in all_max.frequencies(all_max.turn(), 4)} == {777}


def test_a_frontier_that_cannot_be_had_leaves_everything_at_the_highest() -> None:
    roster = roster_of(PLANS["pp"])
    scheduler, _ = swept(roster)
    found = scheduler._sweep.found
    scheduler._sweep.found = {key: row for key, row in found.items() if key[0] < 2}
    scheduler.solve()
    assert scheduler.phase == FAILED and "2 stages and the plan 3" in scheduler.reason
    assert {f for _, f in scheduler.frequencies(scheduler.turn(), 0)} == {1400}


# -- stragglers ----------------------------------------------------------------------------------------------------


def mean(frequencies: list[tuple[str, int]]) -> float:
    return sum(f for _, f in frequencies) / len(frequencies)


def test_a_straggler_elsewhere_lets_every_rank_slow_down() -> None:
    roster = roster_of(PLANS["pp"])
    scheduler, _ = swept(roster)
    scheduler.solve()
    before = scheduler.turn()
    scheduler.notify(Notice(1.2))
    after = scheduler.turn()
    frontier = scheduler.solution
    assert frontier is not None and after.time == pytest.approx(1.2 * frontier.time_min)
    plan = frontier.plan_at(1.2 * frontier.time_min)
    assert plan.time <= 1.2 * frontier.time_min
    for rank in range(3):
        assert scheduler.played(after, rank) == plan
    assert plan.energy < frontier.plan_at(frontier.time_min).energy
    scheduler.notify(None)
    assert scheduler.turn() == before


def test_a_replica_that_straggles_is_not_slowed_further() -> None:
    roster = roster_of(PLANS["pp, dp, tp"])
    scheduler, _ = swept(roster)
    scheduler.solve()
    scheduler.notify(Notice(1.3, replica=1))
    turn, frontier = scheduler.turn(), scheduler.solution
    assert frontier is not None
    fastest, slow = frontier.plan_at(frontier.time_min), frontier.plan_at(1.3 * frontier.time_min)
    for rank, seat in roster.seats.items():
        assert scheduler.played(turn, rank) == (fastest if seat.replica == 1 else slow)


@pytest.mark.parametrize("name", ["pp", "pp, dp, tp", "gems"])
@pytest.mark.parametrize("factor", [1.05, 1.5])
def test_who_waits_for_a_straggler_slows_down_and_delays_nobody(name: str, factor: float) -> None:
    plan = PLANS[name]
    roster = roster_of(plan)
    scheduler, _ = swept(roster)
    scheduler.solve()
    fastest = {rank: mean(scheduler.frequencies(scheduler.turn(), rank)) for rank in roster.seats}
    scheduler.notify(Notice(factor, rank=0, replica=0))
    assert scheduler.unsolved
    scheduler.solve()
    turn, frontier = scheduler.turn(), scheduler.solution
    assert turn.eased and not scheduler.unsolved and frontier is not None
    slow = {rank: mean(scheduler.frequencies(turn, rank)) for rank in roster.seats}
    own = [rank for rank in roster.seats if roster.seats[rank].replica == 0]
    others = [rank for rank in own if not set(roster.stages_of(rank)) & set(roster.stages_of(0))]
    assert all(slow[rank] <= fastest[rank] for rank in others)
    for rank in roster.seats:
        played = scheduler.played(turn, rank)
        assert played is not None and played.time <= factor * frontier.time_min * (1 + 1e-6)


def test_the_slowness_of_a_stage_follows_from_the_iteration() -> None:
    plan = PLANS["pp"]
    schedule, table = generate(plan), profile(3)
    fastest = solve(plan, table, BLOCKING).time_min
    for stage in range(3):
        goal = 1.7 * fastest
        factor = slowness(schedule, table, {stage}, goal)
        assert factor is not None and factor > 1
        slowed = tuple(row._replace(time=row.time * factor) if row.stage == stage else row for row in table.rows)
        assert solve(plan, replace(table, rows=slowed), BLOCKING).time_min == pytest.approx(goal, rel=1e-6)
        eased = ease(schedule, table, BLOCKING, {stage}, goal)
        assert eased is not None and eased.time <= goal * (1 + 1e-6)
    assert slowness(schedule, table, {7}, goal) is None


# -- given plans ---------------------------------------------------------------------------------------------------


def given(plan: Plan, time: float, frequency: int, rows: int | None = None) -> FrequencyPlan:
    """A plan that is nothing but its frequency."""
    lists = [[i.kind for i in row if i.kind in COMPUTE] for row in generate(plan).ranks]
    picked = lists if rows is None else [lists[i * len(lists) // rows] for i in range(rows)]
    return FrequencyPlan(time, time, 10 / time, tuple(tuple((kind, frequency) for kind in row) for row in picked))


def test_given_plans_are_played_the_fastest_first_and_slower_for_a_straggler() -> None:
    plan = PLANS["pp, dp, tp"]
    roster = roster_of(plan)
    # One list for each place: all ranks of a (dp, tp) group play it.
    plans = [given(plan, time, frequency, rows=2) for time, frequency in ((1.3, 800), (1.0, 1400), (1.1, 1200))]
    scheduler = PointSolution(roster, plans)

    def played() -> list[set[int]]:
        turn = scheduler.turn()
        return [{f for _, f in scheduler.frequencies(turn, rank)} for rank in range(plan.world_size)]

    assert played() == [{1400}] * 12
    scheduler.notify(Notice(1.2))
    assert played() == [{1200}] * 12
    scheduler.notify(Notice(1.35, rank=5, replica=1))
    assert played() == [{800}] * 4 + [{1400}] * 4 + [{800}] * 4


def test_plans_of_another_job_are_refused() -> None:
    roster = roster_of(PLANS["pp"])
    for other in (Plan.uniform(4, microbatches=4), Plan.uniform(3, microbatches=5)):
        with pytest.raises(ValueError, match="made for this job"):
            PointSolution(roster, [given(other, 1.0, 1400)])


def test_a_python_list_has_a_row_for_each_stage_rank_or_rank_of_the_job() -> None:
    plan = PLANS["pp, dp, tp"]  # 2 stages of 2 ranks, 3 replicas
    roster = roster_of(plan)
    kinds = [[kind for kind, _ in row] for row in roster.rows]
    for rows, mine in ((2, lambda rank: rank % 4 // 2), (4, lambda rank: rank % 4), (12, lambda rank: rank)):
        local = [0, 2] if rows == 2 else [row % 4 for row in range(rows)]
        text = str([[(kind, 1000 + row) for kind in kinds[local[row]]] for row in range(rows)])
        for given in (text, str([[1000 + row] * len(kinds[local[row]]) for row in range(rows)])):
            scheduler = PointSolution(roster, [FrequencyPlan.from_literal(given)])
            turn = scheduler.turn()
            for rank in range(plan.world_size):
                assert scheduler.frequencies(turn, rank) == [(kind, 1000 + mine(rank)) for kind in kinds[rank % 4]]
            # Nobody said how long it takes: with a straggler it is what there is, and every turn is read back.
            scheduler.notify(Notice(1.5))
            again = TURN.validate_json(TURN.dump_json(scheduler.turn()))
            assert scheduler.frequencies(again, 3) == scheduler.frequencies(turn, 3)
            assert scheduler.solution.points == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[1]] * 3", "line 1"),
        (str([[1] * 8] * 5), "the plan has 5 rows and the job 3 places, 3 ranks in a replica and 3 in all"),
        (str([[1] * 8, [1] * 8, [1] * 7]), "row 2 of the plan has 7 instructions that are not the 8"),
        (str([[("backward", 1)] * 8, [1] * 8, [1] * 8]), "row 0 of the plan has 8 instructions that are not the 8"),
    ],
)
def test_a_python_list_of_another_job_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PointSolution(roster_of(PLANS["pp"]), [FrequencyPlan.from_literal(text)])


def test_of_several_plans_all_must_say_how_long_they_take() -> None:
    timed, untimed = given(PLANS["pp"], 1.0, 1400), FrequencyPlan.from_literal("[[1410]]")
    ServerSettings(scheduler="point-solution", plans=(untimed,))
    with pytest.raises(ValueError, match="1 of 2 plans do not say how long they take"):
        ServerSettings(scheduler="point-solution", plans=(timed, untimed))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        *[(f"{name}{suffix}", "all-max") for name in ("AllMax", "AllMaxFrequency") for suffix in ("", "3D")],
        *[(f"InstructionProfiler{suffix}", "instruction-profiler") for suffix in ("", "3D")],
        *[(f"PointSolution{suffix}", "point-solution") for suffix in ("", "3D")],
        *[(name, name) for name in SCHEDULERS],
    ],
)
def test_schedulers_are_known_by_the_names_of_perseus_and_zeus(name: str, ours: str) -> None:
    assert scheduler_named(name) == ours


def test_a_scheduler_that_is_not_here_is_refused() -> None:
    for name in ("AllMaxPowerLimit3D", "ZeusGlobalPowerLimit", "pointsolution", "", "3D"):
        with pytest.raises(
            ValueError, match=rf"scheduler = '{name}' is unknown: .*one of instruction-profiler, all-max"
        ):
            scheduler_named(name)
