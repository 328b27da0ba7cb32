"""From optimal durations, which lie between what the hardware offers, to a frequency for each operation: never later
than the deadline, and nearly as cheap. Knows operations by number and the choices of each.

Forward through the operations, each takes the slowest choice of its hull that still ends by its optimal end, but at
most one step slower than its optimal duration (a slow choice here leaves little for those after it). Then backward:
whatever slack is left, each takes the cheapest of all its choices that fits. Ending early everywhere is a bias, so
where this loses much it is tried again with ends that may be late by a part of a step, as long as the operations after
it could still make up for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from halocline.energy.frontier.choices import Choice, Choices
from halocline.energy.frontier.curve import effective_cost, hull, ticks_of

_LATE = (0, 10, 25, 50)
"""How late an operation may end, in percent of the step it takes: one try each."""


class Pick(NamedTuple):
    """A choice made for an operation."""

    time: int
    """Ticks."""
    cost: float
    """Joules beyond waiting, of all its ranks in all replicas."""
    frequency: int


class Steps(NamedTuple):
    """The choices of an operation that can pay: each slower one is cheaper."""

    picks: tuple[Pick, ...]
    times: tuple[int, ...]
    """Their ticks, rising."""
    corners: tuple[int, ...]
    """Ticks of those on the hull, rising."""


def steps_of(choices: Choices, ranks: int, blocking_power: float) -> Steps:
    """The choices of an operation with so many ranks."""
    kept: list[Pick] = []
    for pick in sorted(pick_of(choice, ranks, blocking_power) for choice in choices):
        if not kept or pick.cost < kept[-1].cost:
            kept.append(pick)
    corners = hull(choices, ranks, blocking_power).times
    return Steps(tuple(kept), tuple(pick.time for pick in kept), corners)


def pick_of(choice: Choice, ranks: int, blocking_power: float) -> Pick:
    cost = effective_cost(choice.time, choice.energy, ranks, blocking_power)
    return Pick(ticks_of(choice.time), cost, choice.frequency)


class Rounder:
    """Rounds solutions of one graph."""

    def __init__(self, steps: Sequence[Steps], edges: Sequence[tuple[int, int, int]]) -> None:
        """`edges` are (first, then, ticks between them); operations stand in an order in which they can run."""
        self.steps = steps
        self._before: list[list[tuple[int, int]]] = [[] for _ in steps]
        self._after: list[list[tuple[int, int]]] = [[] for _ in steps]
        for first, then, wait in edges:
            self._before[then].append((first, wait))
            self._after[first].append((then, wait))
        self._behind = [0] * len(steps)
        """Ticks from an operation's end to the end of all, if everything after it runs as fast as it can."""
        for number in reversed(range(len(steps))):
            for then, wait in self._after[number]:
                behind = wait + steps[then].times[0] + self._behind[then]
                self._behind[number] = max(self._behind[number], behind)

    def round(self, begins: Sequence[int], ends: Sequence[int], deadline: int, good: float) -> list[Pick]:
        """A pick for each operation. A cost of `good` joules needs no further try."""
        best: list[Pick] = []
        least = math.inf
        for late in _LATE:
            chosen = self._reclaimed(self._starts(begins, ends, deadline, late), deadline)
            cost = sum([pick.cost for pick in chosen])
            if cost < least:
                best, least = chosen, cost
            if cost <= good:
                break
        return best

    def makespan(self, picks: Sequence[Pick]) -> int:
        """Ticks from the first operation to the end of the last."""
        ends: list[int] = []
        for before, pick in zip(self._before, picks):
            start = 0
            for first, wait in before:
                if ends[first] + wait > start:
                    start = ends[first] + wait
            ends.append(start + pick.time)
        return max(ends)

    def _starts(self, begins: Sequence[int], ends: Sequence[int], deadline: int, late: int) -> list[int]:
        """When each operation starts if all take corners near their optimal durations. One always fits: those before it
        have left it the time it needs at its fastest."""
        started: list[int] = []
        ended: list[int] = []
        for steps, before, begin, end, behind in zip(self.steps, self._before, begins, ends, self._behind):
            start = 0
            for first, wait in before:
                if ended[first] + wait > start:
                    start = ended[first] + wait
            corners = steps.corners
            corner = bisect_right(corners, end - start) - 1
            if late:
                corner = max(corner, 0)
                if corner + 1 < len(corners):
                    longer = corners[corner + 1]
                    if 100 * (start + longer - end) <= late * (longer - corners[corner]):
                        corner += 1
                corner = min(corner, bisect_right(corners, deadline - behind - start) - 1)
            if corner and end - begin <= corners[corner - 1]:
                corner = bisect_left(corners, end - begin)
            assert corner >= 0, "those before it left it too little time"
            started.append(start)
            ended.append(start + corners[corner])
        return started

    def _reclaimed(self, started: Sequence[int], deadline: int) -> list[Pick]:
        """From the last operation to the first, the cheapest choice between its start and its latest end."""
        picks: list[Pick] = []
        latest = [0] * len(started)
        for number in reversed(range(len(started))):
            end = deadline
            for then, wait in self._after[number]:
                if latest[then] - wait < end:
                    end = latest[then] - wait
            steps = self.steps[number]
            pick = steps.picks[bisect_right(steps.times, end - started[number]) - 1]
            picks.append(pick)
            latest[number] = end - pick.time
        picks.reverse()
        return picks
