"""The checker catches what it promises: damage to a good schedule is named with its rank and instruction."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from halocline.plan import SCHEDULES, Plan
from halocline.schedule import Instruction, Schedule, ScheduleError, check, generate, walk
from harness.plans import SHAPES, plan_of

Rows = list[list[Instruction]]


def damaged(schedule: Schedule, change: Callable[[Rows], None]) -> Schedule:
    rows = [list(row) for row in schedule.ranks]
    change(rows)
    return schedule._replace(ranks=tuple(map(tuple, rows)))


def samples() -> list[Schedule]:
    made = []
    for name in SCHEDULES:
        for shape in SHAPES:
            for stages, microbatches in ((2, 4), (4, 8), (3, 6)):
                plan = plan_of(name, shape, stages, microbatches)
                if plan is not None:
                    made.append(generate(plan))
    return made


SAMPLES = samples()


def places(rows: Rows, *kinds: str) -> list[tuple[int, int]]:
    return [(r, i) for r, row in enumerate(rows) for i, instruction in enumerate(row) if instruction.kind in kinds]


@pytest.mark.parametrize(
    "kind", ["forward", "backward", "backward-weight", "send", "receive", "free", "reduce", "step"]
)
def test_a_dropped_instruction_is_named(kind: str) -> None:
    caught = 0
    for seed, schedule in enumerate(SAMPLES):
        found = places([list(row) for row in schedule.ranks], kind)
        if not found:
            continue
        rank, index = random.Random(seed).choice(found)
        gone = schedule.ranks[rank][index]
        with pytest.raises(ScheduleError) as error:
            check(damaged(schedule, lambda rows, r=rank, i=index: rows[r].pop(i)))  # type: ignore[misc]
        assert f"rank {rank}" in str(error.value)
        assert str(gone) in str(error.value)
        caught += 1
    assert caught >= 3


@pytest.mark.parametrize("kind", ["forward", "backward", "backward-input", "send", "receive", "free", "reduce", "step"])
def test_a_doubled_instruction_is_named(kind: str) -> None:
    caught = 0
    for seed, schedule in enumerate(SAMPLES):
        found = places([list(row) for row in schedule.ranks], kind)
        if not found:
            continue
        rank, index = random.Random(seed).choice(found)
        twice = schedule.ranks[rank][index]
        with pytest.raises(ScheduleError, match="stands twice") as error:
            check(damaged(schedule, lambda rows, r=rank, i=index, t=twice: rows[r].insert(i + 1, t)))  # type: ignore[misc]
        assert f"rank {rank}: {twice}" in str(error.value)
        caught += 1
    assert caught >= 3


def test_two_receives_swapped_are_named() -> None:
    """The sides of a pair disagree on the order of two messages: NCCL would deliver each as the other."""
    caught = 0
    for schedule in SAMPLES:
        for rank, row in enumerate(schedule.ranks):
            pair = next(
                (
                    (i, j)
                    for i, a in enumerate(row)
                    if a.kind == "receive"
                    for j, b in enumerate(row[i + 1 :], i + 1)
                    if b.kind == "receive" and b.peer == a.peer
                ),
                None,
            )
            if pair is None:
                continue
            i, j = pair

            def swap(rows: Rows, r: int = rank, i: int = i, j: int = j) -> None:
                rows[r][i], rows[r][j] = rows[r][j], rows[r][i]

            with pytest.raises(ScheduleError) as error:
                check(damaged(schedule, swap))
            assert f"rank {rank}" in str(error.value)
            assert "receive" in str(error.value)
            caught += 1
    assert caught >= 50


def test_sends_that_face_each_other_are_a_deadlock_with_a_story() -> None:
    """Two ranks that both send first: fine with buffers, stuck where a send blocks until its receive."""
    schedule = generate(Plan.uniform(2, schedule="gpipe", microbatches=2))
    rank_0 = list(schedule.ranks[0])
    rank_1 = list(schedule.ranks[1])
    # Rank 0 gets its first gradient only after it sent its second activation; make rank 1 send it before it receives.
    take = rank_1.index(Instruction("receive", 0, 0, 1, "activation", 0))
    moved = rank_1.pop(take)
    after = rank_1.index(Instruction("send", 0, 0, 0, "gradient", 0)) + 1
    forward = rank_1.pop(rank_1.index(Instruction("forward", 0, 1, 1)))
    rank_1[after - 1 : after - 1] = []
    rank_1.insert(after - 1, moved)
    rank_1.insert(after, forward)
    with pytest.raises(ScheduleError, match="deadlock") as error:
        check(schedule._replace(ranks=(tuple(rank_0), tuple(rank_1))))
    for part in ("rank 0 waits at instruction", "rank 1 waits at instruction", "send activation", "send gradient"):
        assert part in str(error.value)


def test_teams_that_meet_in_different_orders_are_a_deadlock() -> None:
    plan = plan_of("gpipe", "spatial", 1, 2)
    assert plan is not None

    def swap(rows: Rows) -> None:
        rows[2][0], rows[2][1] = rows[2][1], rows[2][0]

    with pytest.raises(ScheduleError, match=r"deadlock: rank 0 waits at instruction 0 \(forward p0 s0 m0\) for rank 2"):
        check(damaged(generate(plan), swap))


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        ("receive activation p0 s0 m0 <- 0", "forward p0 s1 m0", "a forward needs the activation it receives"),
        ("backward p0 s1 m0", "free p0 s1 m0", "freed after their last use"),
        ("backward p0 s1 m3", "reduce s1", "a reduction needs the stage's last backward"),
        ("forward p0 s1 m0", "send activation p0 s1 m0 -> 2", "sent after it is made"),
        ("receive gradient p0 s1 m0 <- 2", "backward p0 s1 m0", "a backward needs the gradient it receives"),
        ("send gradient p0 s0 m0 -> 0", "free gradient p0 s0 m0 -> 0", "freed after its send"),
    ],
)
def test_a_use_before_its_making_is_named(first: str, then: str, why: str) -> None:
    schedule = generate(Plan.uniform(3, schedule="gpipe", microbatches=4, replicas=2))
    row = schedule.ranks[1]
    names = [str(instruction) for instruction in row]

    def move(rows: Rows) -> None:
        late = rows[1].pop(names.index(then))
        rows[1].insert(names.index(first), late)

    with pytest.raises(ScheduleError, match=why) as error:
        check(damaged(schedule, move))
    assert first in str(error.value) and then in str(error.value) and "rank 1" in str(error.value)


@pytest.mark.parametrize(
    "stray",
    [
        Instruction("forward", 0, 0, 0),
        Instruction("forward", 0, 1, 9),
        Instruction("reduce", 0, 1),
        Instruction("send", 0, 1, 0, "activation", 0),
        Instruction("free", 0, 2, 0),
        Instruction("backward-weight", 0, 1, 0),
    ],
)
def test_work_of_another_rank_is_named(stray: Instruction) -> None:
    schedule = generate(Plan.uniform(3, microbatches=2))
    with pytest.raises(ScheduleError, match="rank 1") as error:
        check(damaged(schedule, lambda rows: rows[1].insert(0, stray)))
    assert str(stray) in str(error.value)


def test_a_step_before_the_end_is_named() -> None:
    schedule = generate(Plan.uniform(2, microbatches=2))
    with pytest.raises(ScheduleError, match=r"rank 0: .* stands after the step"):
        check(damaged(schedule, lambda rows: rows[0].insert(3, rows[0].pop())))


def test_a_schedule_of_another_size_is_refused() -> None:
    schedule = generate(Plan.uniform(2, microbatches=2))
    with pytest.raises(ScheduleError, match="has 1 ranks and its plan needs 2"):
        check(schedule._replace(ranks=schedule.ranks[:1]))


def test_walk_yields_every_event_once() -> None:
    for schedule in SAMPLES:
        events = list(walk(schedule))
        taken = sum(len(ranks) for instruction, ranks in events if instruction.kind != "send")
        messages = sum(instruction.kind == "send" for instruction, _ in events)
        assert taken + 2 * messages == sum(map(len, schedule.ranks))
