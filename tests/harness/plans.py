"""Plans for the schedule tests: every generator over the five shapes of team a schedule can meet."""

from __future__ import annotations

from collections.abc import Iterator

from halocline.plan import SCHEDULES, Plan, Stage

SHAPES = ("plain", "spatial", "two-spatial", "two-pipes", "lanes")


def plan_of(schedule: str, shape: str, stages: int, microbatches: int, **fields: object) -> Plan | None:
    """The plan, or None where the schedule does not take this number of stages, microbatches or pipes."""
    chunks = 2 if schedule == "interleaved" else 1
    mirrored = schedule in ("gems", "chimera")
    if shape == "two-pipes" and not (mirrored or schedule == "capped"):
        return None
    if shape == "two-spatial" and stages < 2:
        return None
    pipes = 2 if mirrored or shape == "two-pipes" else 1
    if schedule == "interleaved" and microbatches % stages:
        return None
    if (schedule == "chimera" and stages % 2) or (pipes == 2 and microbatches % 2):
        return None
    teams: list[dict[str, object]] = [{} for _ in range(stages)]
    if shape == "spatial":
        teams[0] = {"tiles": (2, 2)}
    elif shape == "two-spatial":
        teams[0], teams[1] = {"tiles": (2, 2)}, {"tiles": (1, 2)}
    elif shape == "two-pipes" and mirrored:
        teams[0] = {"tiles": (1, 3)}  # plain mirrored plans are the shape "plain"; here the two pipes' teams overlap
    elif shape == "lanes":
        teams[-1] = {"lanes": 2}
    recompute = schedule == "early-recompute-1f1b"
    made = [
        Stage((s, s + 1), recompute=recompute and s < stages - 1, **team)  # type: ignore[arg-type]
        for s, team in enumerate(teams * chunks)
    ]
    return Plan(
        stages=tuple(made),
        schedule=schedule,
        microbatches=microbatches,
        pipes=pipes,
        chunks=chunks,
        **fields,  # type: ignore[arg-type]
    )


def all_plans(schedule: str) -> Iterator[Plan]:
    """Stages 1-8 x microbatches 1-32 x the five shapes, where the schedule allows."""
    assert schedule in SCHEDULES
    for shape in SHAPES:
        for stages in range(1, 9):
            for microbatches in range(1, 33):
                plan = plan_of(schedule, shape, stages, microbatches)
                if plan is not None:
                    yield plan
