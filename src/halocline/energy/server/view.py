"""What is told of a job: as a line of the list, and as its frontier with what was measured on it. Decides nothing."""

from __future__ import annotations

import asyncio
from itertools import accumulate, islice
from typing import Any

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.server.job import Job
from halocline.energy.server.schedulers.instruction_profiler import InstructionProfiler
from halocline.energy.server.timeline import Timeline
from halocline.plan.plan import Plan

_POINTS = 512
"""Points of a frontier that are sent; more cannot be seen."""
_ROWS = 32
"""Ranks of which a timeline is drawn."""


def job_facts(job: Job) -> dict[str, Any]:
    """A line of the list of jobs."""
    plan, turn = job.plan, job.turn
    return {
        "job": job.name,
        "created": job.created,
        "device": job.info.device,
        "simulated": job.simulated,
        "metadata": job.info.job_metadata,
        "scheduler": job.scheduler_name,
        "phase": job.phase,
        "reason": job.scheduler.reason if job.scheduler else "",
        "pp_degree": plan.places,
        "dp_degree": plan.replicas,
        "world_size": plan.world_size,
        "schedule": plan.schedule,
        "microbatches": plan.microbatches,
        "registered": len(job.ranks),
        "missing": list(islice(job.missing, 16)),
        "round": job.round,
        "reports": job.reports,
        "straggler": job.notice.factor if job.notice else None,
        "clocks": list(turn.clocks) if turn and turn.clocks else None,
        "measured": job.measured.saved(),
    }


async def frontier_facts(job: Job, time: float | None) -> dict[str, Any]:
    """The frontier, as far as it is known, and with a time the plan that meets it."""
    facts = {**job_facts(job), "points": [], "time_min": None, "time_star": None, "all_max": None, "plan": None}
    facts["rounds"] = [
        {"round": round.round, "phase": round.phase, "time": round.time, "energy": round.energy}
        for round in job.measured.whole
    ]
    scheduler = job.scheduler
    if scheduler is None or scheduler.solution is None:
        return facts
    await asyncio.to_thread(_solution_facts, facts, job, time)
    return facts


def _solution_facts(facts: dict[str, Any], job: Job, time: float | None) -> None:
    """Takes a while: not for the thread that answers."""
    scheduler = job.scheduler
    assert scheduler is not None and scheduler.solution is not None
    if isinstance(scheduler, InstructionProfiler):
        facts["blocking_power"] = scheduler.blocking_power
    points = sorted((point.time, point.energy) for point in scheduler.solution.points)
    facts["points"] = _thinned(points)
    facts["time_min"], facts["time_star"] = points[0][0], points[-1][0]
    highest = scheduler.solution.all_max
    if highest:
        facts["all_max"] = {"time": highest.time, "energy": highest.energy}
    if job.turn is not None and job.turn.time is not None:
        facts["played"] = min(job.turn.time, points[-1][0])
    if time is not None:
        plan = scheduler.solution.plan_at(max(time, points[0][0]))
        facts["plan"] = _plan_facts(plan, scheduler.drawn(plan), highest, _drawn_ranks(job.plan))


def _drawn_ranks(plan: Plan) -> set[int]:
    """All ranks of a replica where they are few; else the first of each team, since a team runs in lockstep."""
    if plan.ranks_per_replica <= _ROWS:
        return set(range(plan.ranks_per_replica))
    firsts = accumulate((stage.team_size for stage in plan.stages[: plan.places - 1]), initial=0)
    return set(firsts)


def _plan_facts(plan: FrequencyPlan, drawn: Timeline, highest: FrequencyPlan | None, ranks: set[int]) -> dict[str, Any]:
    return {
        "time": plan.time,
        "energy": plan.energy,
        "saved": 1 - plan.energy / highest.energy if highest and highest.energy else None,
        "slowdown": plan.time / highest.time - 1 if highest and highest.time else None,
        "timeline": [list(bar) for bar in drawn.bars if bar.rank in ranks],
        "nominal": drawn.nominal,
    }


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Evenly many along the curve, both ends among them."""
    if len(points) <= _POINTS:
        return points
    last = len(points) - 1
    return [points[round(i * last / (_POINTS - 1))] for i in range(_POINTS)]
