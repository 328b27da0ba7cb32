"""The schedulers: what the ranks of a job play next, and what is learned from playing it."""

from __future__ import annotations

from halocline.energy.server.schedulers.instruction_profiler import InstructionProfiler
from halocline.energy.server.schedulers.scheduler import AllMax, PointSolution, Roster, Scheduler
from halocline.energy.server.settings import SCHEDULERS, ServerSettings


def make_scheduler(name: str, roster: Roster, settings: ServerSettings) -> Scheduler:
    """The scheduler of a job, before anything has been played."""
    if name == "all-max":
        return AllMax(roster)
    if name == "point-solution":
        return PointSolution(roster, settings.plans)
    assert name in SCHEDULERS, name
    return InstructionProfiler(roster, settings)
