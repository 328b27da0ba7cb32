"""Every generator over every shape of plan: generated, lowered, proved without one deadlock, and drawn as it says."""

from __future__ import annotations

import importlib

import pytest

from halocline.plan import SCHEDULES, Layout, Plan, Stage
from halocline.schedule import generate
from halocline.schedule.generate import orders
from halocline.schedule.lower import DURATIONS, times
from harness.plans import SHAPES, all_plans, plan_of


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_plan_is_proved(schedule: str) -> None:
    proved = 0
    for plan in all_plans(schedule):
        generate(plan)  # raises where the checker does not agree
        proved += 1
    assert proved >= {"chimera": 64 * 5, "interleaved": 79 * 3}.get(schedule, 512)


@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_reduce_every_stage(replicas: int) -> None:
    schedule = generate(Plan.uniform(3, microbatches=4, replicas=replicas))
    reductions = [i for row in schedule.ranks for i in row if i.kind == "reduce"]
    assert len(reductions) == (3 if replicas > 1 else 0)


def test_the_middle_stage_of_an_odd_gems_shares_with_itself_only() -> None:
    schedule = generate(Plan.uniform(5, schedule="gems", microbatches=4, pipes=2))
    reduced = [sorted(i.stage for i in row if i.kind == "reduce") for row in schedule.ranks]
    assert reduced == [[0, 4], [1, 3], [], [1, 3], [0, 4]]


def test_a_reduction_starts_before_the_end_of_the_work() -> None:
    """In gems rank 3 waits long for its last backward: the other stage it shares is reduced meanwhile."""
    schedule = generate(Plan.uniform(4, schedule="gems", microbatches=4, pipes=2))
    row = [str(instruction) for instruction in schedule.ranks[3]]
    assert row.index("reduce s3") < row.index("backward p1 s0 m3") < row.index("reduce s0")


def test_capped_finds_gems_and_chimera() -> None:
    def makespan(plan: Plan, backward: float) -> float:
        layout = Layout(plan)
        durations = {**DURATIONS, "backward": backward}
        return max(end for _, end in times(plan, layout, orders(plan, layout), durations).values())

    two = {"microbatches": 8, "pipes": 2}
    assert makespan(Plan.uniform(4, schedule="capped", cap=1, **two), 2.0) == 75
    assert makespan(Plan.uniform(4, schedule="gems", **two), 2.0) == 75
    assert makespan(Plan.uniform(4, schedule="chimera", **two), 1.0) == 18
    assert makespan(Plan.uniform(4, schedule="capped", cap=4, **two), 2.0) <= 29


@pytest.mark.parametrize("cap", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_capped_stays_under_its_cap(shape: str, cap: int) -> None:
    plan = plan_of("capped", shape, 5, 12, cap=cap)
    assert plan is not None
    for order in orders(plan, Layout(plan)):
        held = most = 0
        for operation in order:
            held += 1 if operation.kind == "forward" else -1
            most = max(most, held)
        assert most <= cap


def test_a_cap_of_exactly_one_microbatch_holds_it_whatever_its_rounding() -> None:
    weights = [2.9, 0.6, 0.8]  # 2.9 - 0.8 + 0.8 is below 2.9
    generate(Plan.uniform(3, schedule="capped", microbatches=4, pipes=2, cap=2.9), weights=weights)


def test_a_cap_below_one_microbatch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cap = 10 does not hold one microbatch of the largest stage \(12\)"):
        generate(Plan.uniform(2, schedule="capped", cap=10, microbatches=2), weights=[12, 3])


def draw(plan: Plan, backward: float = 1.0) -> list[str]:
    """One line per rank, one column per time slot."""
    layout = Layout(plan)
    durations = {**dict.fromkeys(DURATIONS, 1.0), "backward": backward}
    letters = {"forward": "F", "backward": "B", "backward-input": "I", "backward-weight": "W", "recompute": "R"}
    rows: list[dict[int, str]] = [{} for _ in range(layout.ranks_per_replica)]
    for operation, (start, end) in times(plan, layout, orders(plan, layout), durations).items():
        letter = letters[operation.kind]
        if operation.pipe or operation.stage >= plan.places:
            letter = letter.lower()
        for rank in layout.team(operation.pipe, operation.stage):
            for slot in range(round(start * plan.chunks), round(end * plan.chunks)):
                rows[rank][slot] = f"{letter}{operation.microbatch}"
    return [
        f"rank {rank}  " + " ".join(row.get(slot, "..") for slot in range(max(row) + 1))
        for rank, row in enumerate(rows)
    ]


EARLY = Plan(
    stages=tuple(Stage((s, s + 1), recompute=s < 3) for s in range(4)), schedule="early-recompute-1f1b", microbatches=4
)


@pytest.mark.parametrize(
    ("module", "plan", "backward"),
    [
        ("layer", Plan.uniform(4, schedule="layer", microbatches=2), 1),
        ("gpipe", Plan.uniform(4, schedule="gpipe", microbatches=4), 1),
        ("one_forward_one_backward", Plan.uniform(4, schedule="1f1b", microbatches=4), 1),
        ("one_forward_one_backward", EARLY, 1),
        ("interleaved", Plan.uniform(4, schedule="interleaved", chunks=2, microbatches=4), 1),
        ("zero_bubble", Plan.uniform(4, schedule="zb-h1", microbatches=4), 1),
        ("gems", Plan.uniform(4, schedule="gems", microbatches=2, pipes=2), 2),
        ("chimera", Plan.uniform(4, schedule="chimera", microbatches=4, pipes=2), 1),
        ("capped", Plan.uniform(4, schedule="capped", microbatches=4, cap=2), 1),
    ],
)
def test_each_file_draws_what_it_makes(module: str, plan: Plan, backward: float) -> None:
    text = importlib.import_module(f"halocline.schedule.{module}").__doc__
    assert text is not None
    lines = [line.strip() for line in text.splitlines()]
    assert "\n".join(draw(plan, backward)) in "\n".join(lines)
