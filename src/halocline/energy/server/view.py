"""What the server shows: a job as a line of the list, and as its frontier with what was measured on it; and itself as
metrics in Prometheus' text form. Decides nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Any

from halocline.energy.server.instruction_profiler import InstructionProfiler
from halocline.energy.server.job import Job
from halocline.energy.server.schedulers import GivenPlans
from halocline.energy.server.store import Store
from halocline.plan.plan import Plan

_POINTS = 512
"""Points of a frontier that are sent; more cannot be seen."""
_ROWS = 32
"""Ranks of which a timeline is drawn."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_PREFIX = "halocline_energy_"


def job_facts(job: Job) -> dict[str, Any]:
    """A line of the list of jobs."""
    plan, turn = job.plan, job.turn
    return {
        "job": job.name,
        "created": job.created,
        "device": job.info.device,
        "simulated": (job.info.device or "").lower().startswith("simulated"),
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
    if not points:
        return  # a given plan that does not say how long it takes
    facts["points"] = _thinned(points)
    facts["time_min"], facts["time_star"] = points[0][0], points[-1][0]
    highest = scheduler.solution.all_max
    if highest:
        facts["all_max"] = {"time": highest.time, "energy": highest.energy}
    if job.turn is not None and job.turn.time is not None:
        facts["played"] = min(job.turn.time, points[-1][0])
    if time is not None:
        plan = scheduler.solution.plan_at(max(time, points[0][0]))
        ranks = _drawn_ranks(job.plan)
        facts["plan"] = {
            "time": plan.time,
            "energy": plan.energy,
            "saved": 1 - plan.energy / highest.energy if highest and highest.energy else None,
            "slowdown": plan.time / highest.time - 1 if highest and highest.time else None,
            "timeline": [list(bar) for bar in scheduler.drawn(plan) if bar.rank in ranks],
            "nominal": isinstance(scheduler.solution, GivenPlans),
        }


def _drawn_ranks(plan: Plan) -> set[int]:
    """All ranks of a replica where they are few; else the first of each team, since a team runs in lockstep."""
    if plan.ranks_per_replica <= _ROWS:
        return set(range(plan.ranks_per_replica))
    return set(accumulate((stage.team_size for stage in plan.stages[: plan.places - 1]), initial=0))


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Evenly many along the curve, both ends among them."""
    if len(points) <= _POINTS:
        return points
    last = len(points) - 1
    return [points[round(i * last / (_POINTS - 1))] for i in range(_POINTS)]


class ServerMetrics:
    """Counts since the start of the server."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        """One request; `path` is one of a few names, never what a client made up."""
        self._requests[method, path, status] += 1
        self._seconds[path] += seconds  # type: ignore[assignment]
        self._buckets[path, next((bound for bound in _BOUNDS if seconds <= bound), math.inf)] += 1

    def text(self, jobs: Iterable[Job], store: Store) -> str:
        lines: list[str] = []
        _head(lines, "requests_total", "counter", "Requests answered.")
        for (method, path, status), count in sorted(self._requests.items()):
            lines.append(f'{_PREFIX}requests_total{{method="{method}",path="{path}",status="{status}"}} {count}')
        _head(lines, "request_seconds", "histogram", "Time to answer; /schedule waits for all ranks.")
        for path in sorted(self._seconds):
            below = 0
            for bound in _BOUNDS:
                below += self._buckets[path, bound]
                lines.append(f'{_PREFIX}request_seconds_bucket{{path="{path}",le="{bound:g}"}} {below}')
            total = below + self._buckets[path, math.inf]
            lines.append(f'{_PREFIX}request_seconds_bucket{{path="{path}",le="+Inf"}} {total}')
            lines.append(f'{_PREFIX}request_seconds_sum{{path="{path}"}} {self._seconds[path]:.6f}')
            lines.append(f'{_PREFIX}request_seconds_count{{path="{path}"}} {total}')
        known = list(jobs)
        _head(lines, "jobs", "gauge", "Jobs by what they do.")
        for phase, count in sorted(Counter(job.phase for job in known).items()):
            lines.append(f'{_PREFIX}jobs{{phase="{phase}"}} {count}')
        for name, kind, help, value in (
            ("ranks", "gauge", "Ranks registered, of all jobs.", sum(len(job.ranks) for job in known)),
            ("rounds", "gauge", "Schedules decided, of all jobs.", sum(job.round + 1 for job in known)),
            ("reports", "gauge", "Reports kept, of all jobs.", sum(job.reports for job in known)),
            ("solve_seconds_total", "counter", "Time spent on frontiers.", sum(job.solve_seconds for job in known)),
            ("commits_total", "counter", "Commits of the store.", store.commits),
            ("commit_seconds_total", "counter", "Time spent in commits.", store.commit_seconds),
        ):
            _head(lines, name, kind, help)
            lines.append(f"{_PREFIX}{name} {value:g}" if isinstance(value, float) else f"{_PREFIX}{name} {value}")
        return "\n".join(lines) + "\n"


def _head(lines: list[str], name: str, kind: str, help: str) -> None:
    lines += [f"# HELP {_PREFIX}{name} {help}", f"# TYPE {_PREFIX}{name} {kind}"]
