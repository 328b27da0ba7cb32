"""What a straggler's own replica plays. Its stages are slow by an unknown factor; what is known is how long an
iteration takes with them. From that the factor follows, and with it a frontier in which they are as slow as they are:
its fastest plan delays nobody further, and lets all who wait for the straggler run slower.
"""

from __future__ import annotations

from collections.abc import Collection

from halocline.energy.frontier.choices import Menu
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import solve
from halocline.energy.frontier.graph import graph_of
from halocline.energy.profile.table import ProfileTable
from halocline.schedule.instruction import Schedule

_STEPS = 50


def ease(
    schedule: Schedule, profile: ProfileTable, blocking_power: float, stages: Collection[int], goal: float
) -> FrequencyPlan | None:
    """The plan for a replica whose `stages` are so slow that an iteration takes `goal` seconds at its fastest. None
    where no slowness of these stages gives that (they do not take part in the iteration)."""
    factor = slowness(schedule, profile, stages, goal)
    if factor is None:
        return None
    slowed = tuple(row._replace(time=row.time * factor) if row.stage in stages else row for row in profile.rows)
    frontier = solve(schedule, ProfileTable(slowed, profile.note), blocking_power)
    return frontier.plan_at(max(goal, frontier.time_min))


def slowness(schedule: Schedule, profile: ProfileTable, stages: Collection[int], goal: float) -> float | None:
    """How many times as long the instructions of `stages` take if an iteration takes `goal` seconds at its fastest."""
    menu, graph = Menu(profile, schedule.plan), graph_of(schedule)
    fastest = []
    for operation in graph.operations:
        instruction = operation.instruction
        choices = menu.of(instruction.kind, instruction.stage, operation.rebuilds)
        fastest.append(min((choice.time for choice in choices), default=0.0))
    before: list[list[int]] = [[] for _ in fastest]
    for first, then, _ in graph.edges:
        before[then].append(first)

    def makespan(factor: float) -> float:
        ends: list[float] = []
        for operation, time, firsts in zip(graph.operations, fastest, before):
            slow = factor if operation.instruction.stage in stages else 1.0
            ends.append(max((ends[first] for first in firsts), default=0.0) + time * slow)
        return max(ends, default=0.0)

    least, most = 1.0, 2.0
    while makespan(most) < goal:
        most *= 2
        if most > 1e6:
            return None
    for _ in range(_STEPS):
        middle = (least + most) / 2
        least, most = (middle, most) if makespan(middle) < goal else (least, middle)
    return least
