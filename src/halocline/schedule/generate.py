"""From a plan to its checked schedule: the table of generators, then lowering, then the checker."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.schedule.capped import capped
from halocline.schedule.check import check
from halocline.schedule.chimera import chimera
from halocline.schedule.gems import gems
from halocline.schedule.gpipe import gpipe
from halocline.schedule.instruction import Instruction, Orders, Schedule
from halocline.schedule.interleaved import interleaved
from halocline.schedule.layer import layer
from halocline.schedule.list_scheduler import PerStage
from halocline.schedule.lower import lower
from halocline.schedule.one_forward_one_backward import early_recompute, one_forward_one_backward
from halocline.schedule.zero_bubble import zero_bubble

ONE_PIPE: dict[str, Callable[[Plan, int], list[Instruction]]] = {
    "layer": layer,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zb-h1": zero_bubble,
    "early-recompute-1f1b": early_recompute,
}
"""Schedules in closed form: the order of one place of the pipe."""


def generate(plan: Plan, *, weights: PerStage = None, forward: PerStage = None, backward: PerStage = None) -> Schedule:
    """The plan's schedule, proved by the checker. Durations and activation weights per stage steer `capped` only."""
    return _generated(plan, *(None if given is None else tuple(given) for given in (weights, forward, backward)))


@lru_cache(maxsize=4)  # a run asks for the same one where it is run, measured and shown
def _generated(plan: Plan, *durations: tuple[float, ...] | None) -> Schedule:
    layout = Layout(plan)
    schedule = lower(plan, layout, orders(plan, layout, *durations))
    check(schedule)
    return schedule


def orders(
    plan: Plan, layout: Layout, weights: PerStage = None, forward: PerStage = None, backward: PerStage = None
) -> Orders:
    """The compute order of every rank of a replica."""
    if plan.schedule == "gems":
        return gems(plan, layout)
    if plan.schedule == "chimera":
        return chimera(plan, layout)
    if plan.schedule == "capped":
        return capped(plan, layout, weights, forward, backward)
    made: Orders = [[] for _ in range(layout.ranks_per_replica)]
    for place in range(plan.places):
        order = ONE_PIPE[plan.schedule](plan, place)
        for rank in layout.team(0, place):
            made[rank] = list(order)
    return made
