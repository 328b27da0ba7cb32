"""From optimal durations, which lie between what the hardware offers, to a frequency for each operation: never later
than the deadline, and nearly as cheap. Knows operations by number and the choices of each.

One way goes forward through the operations: each takes the slowest choice of its hull that still ends by its optimal
end, but at most one step slower than its optimal duration (a slow choice here leaves little for those after it). Then
backward: whatever slack is left, each takes the cheapest of all its choices that fits. The other way does the same in
the opposite directions. Where the first loses little, it is taken as it is; else the cheaper of both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from halocline.energy.choices import Choices
from halocline.energy.curve import effective_cost, hull, ticks_of


class Steps(NamedTuple):
    """The choices of an operation that can pay: each slower one is cheaper."""

    times: tuple[int, ...]
    """Ticks, rising."""
    costs: tuple[float, ...]
    """Joules, falling."""
    frequencies: tuple[int, ...]
    corners: tuple[int, ...]
    """Ticks of those on the hull, rising."""
    numbers: tuple[int, ...]
    """Their places among the times."""


def steps_of(choices: Choices, ranks: int, blocking_power: float) -> Steps:
    """The choices of an operation with so many ranks."""
    corners = hull(choices, ranks, blocking_power).times
    priced = sorted(
        (ticks_of(c.time), effective_cost(c.time, c.energy, ranks, blocking_power), c.frequency) for c in choices
    )
    kept: list[tuple[int, float, int]] = []
    for step in priced:
        if not kept or step[1] < kept[-1][1]:
            kept.append(step)
    times = tuple(step[0] for step in kept)
    return Steps(
        times,
        tuple(step[1] for step in kept),
        tuple(step[2] for step in kept),
        corners,
        tuple(times.index(corner) for corner in corners),
    )


class Rounder:
    """Rounds solutions of one graph."""

    def __init__(self, steps: Sequence[Steps], edges: Sequence[tuple[int, int, int]]) -> None:
        """`edges` are (first, then, ticks between them); operations stand in an order in which they can run."""
        self.steps = steps
        self.before: list[list[tuple[int, int]]] = [[] for _ in steps]
        self.after: list[list[tuple[int, int]]] = [[] for _ in steps]
        for first, then, wait in edges:
            self.before[then].append((first, wait))
            self.after[first].append((then, wait))

    def round(self, begins: Sequence[int], ends: Sequence[int], deadline: int, good: float) -> list[int]:
        """For each operation the number of its choice. A cost of `good` joules needs no second try."""
        first = self._forward(begins, ends, deadline)
        if self.cost(first) <= good:
            return first
        return min(first, self._backward(begins, ends, deadline), key=self.cost)

    def cost(self, chosen: Sequence[int]) -> float:
        return sum(steps.costs[number] for steps, number in zip(self.steps, chosen))

    def makespan(self, times: Sequence[int]) -> int:
        """From the first operation to the end of the last, if each takes as long as told."""
        ends: list[int] = []
        for before, time in zip(self.before, times):
            ends.append(max((ends[first] + wait for first, wait in before), default=0) + time)
        return max(ends)

    def _forward(self, begins: Sequence[int], ends: Sequence[int], deadline: int) -> list[int]:
        count = len(self.steps)
        started, ended = [0] * count, [0] * count
        for number, steps in enumerate(self.steps):
            start = 0
            for first, wait in self.before[number]:
                if ended[first] + wait > start:
                    start = ended[first] + wait
            corner = _corner(steps, ends[number] - start, ends[number] - begins[number])
            started[number], ended[number] = start, start + steps.corners[corner]
        chosen, latest = [0] * count, [0] * count
        for number in reversed(range(count)):
            steps, end = self.steps[number], deadline
            for then, wait in self.after[number]:
                if latest[then] - wait < end:
                    end = latest[then] - wait
            choice = bisect_right(steps.times, end - started[number]) - 1
            chosen[number], latest[number] = choice, end - steps.times[choice]
        return chosen

    def _backward(self, begins: Sequence[int], ends: Sequence[int], deadline: int) -> list[int]:
        count = len(self.steps)
        started, ended = [0] * count, [0] * count
        for number in reversed(range(count)):
            steps, end = self.steps[number], deadline
            for then, wait in self.after[number]:
                if started[then] - wait < end:
                    end = started[then] - wait
            corner = _corner(steps, end - begins[number], ends[number] - begins[number])
            started[number], ended[number] = end - steps.corners[corner], end
        chosen, earliest = [0] * count, [0] * count
        for number, steps in enumerate(self.steps):
            start = 0
            for first, wait in self.before[number]:
                if earliest[first] + wait > start:
                    start = earliest[first] + wait
            choice = bisect_right(steps.times, ended[number] - start) - 1
            chosen[number], earliest[number] = choice, start + steps.times[choice]
        return chosen


def _corner(steps: Steps, room: int, optimal: int) -> int:
    """The slowest corner that fits the room and is at most one slower than the optimal duration. One always fits: what
    came before took no more than its optimal share."""
    corners = steps.corners
    return min(bisect_right(corners, room) - 1, bisect_left(corners, optimal), len(corners) - 1)
