"""From optimal durations, which lie between what the hardware offers, to a frequency for each operation: never later
than the deadline, and nearly as cheap.

Forward through the operations, each takes the slowest choice of its hull that still ends by its optimal end, but at
most one step slower than its optimal duration (a slow choice here leaves little for those after it). Then backward:
whatever slack is left, each takes the cheapest of all its choices that fits. Ending early everywhere is a bias, so
where this loses much it is tried again with ends that may be late by a part of a step, as long as the operations after
it could still make up for it.

`Pricing` puts a price on each operation of a schedule: its curve for the solver, its choices for the plans.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from halocline.energy.frontier.choices import Choice, Choices, Menu
from halocline.energy.frontier.curve import TICKS, Curve, candidates, effective_cost, exponential, hull, ticks_of, units
from halocline.energy.frontier.graph import Node, graph_of
from halocline.energy.profile.table import ProfileTable
from halocline.schedule.instruction import REDUCE, Schedule

COSTS = ("hull", "exponential")
"""What an operation's cost between its choices is taken to be."""

_NOTHING = Choice(0, 0.0, 0.0)
"""The one choice of an operation that takes no time: a reduction that was not measured."""

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
            behind = [wait + steps[then].times[0] + self._behind[then] for then, wait in self._after[number]]
            self._behind[number] = max(behind, default=0)

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
        return max(self._ends(picks))

    def critical(self, picks: Sequence[Pick]) -> list[int]:
        """The operations of a path that takes as long as all of them, from the last to the first."""
        ends = self._ends(picks)
        number: int | None = max(range(len(ends)), key=ends.__getitem__)
        path = []
        while number is not None:
            path.append(number)
            start = ends[number] - picks[number].time
            number = next((first for first, wait in self._before[number] if ends[first] + wait == start), None)
        return path

    def _ends(self, picks: Sequence[Pick]) -> list[int]:
        ends: list[int] = []
        for before, pick in zip(self._before, picks):
            start = 0
            for first, wait in before:
                if ends[first] + wait > start:
                    start = ends[first] + wait
            ends.append(start + pick.time)
        return ends

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


class Pricing:
    """The operations of a schedule with their prices. It finds no optimum itself."""

    def __init__(
        self, schedule: Schedule, profile: ProfileTable, blocking_power: float, latency: float, unit: float | None
    ) -> None:
        """`unit`: seconds of the exponential cost model; None takes the hull."""
        self.graph = graph_of(schedule)
        self.blocking_power = blocking_power
        self.replicas = schedule.plan.replicas
        self.waiting_power = blocking_power * schedule.plan.world_size
        """Watts of all ranks if all waited."""
        self.latency = ticks_of(latency)
        self._unit = unit
        self.menu = Menu(profile, schedule.plan)
        self._priced: dict[tuple[object, ...], tuple[Choices, Curve, Steps]] = {}
        priced = [self._price(operation) for operation in self.graph.operations]
        self.choices = [choices for choices, _, _ in priced]
        self.curves = [curve for _, curve, _ in priced]
        waits = [(first, then, self.latency if message else 0) for first, then, message in self.graph.edges]
        self.rounder = Rounder([steps for _, _, steps in priced], waits)
        self._clocked: list[tuple[list[int], list[str]]] = []
        """For each rank, those of its operations that have a frequency, and their kinds."""
        for row in self.graph.rows:
            numbers = [number for number in row if self.choices[number][0].frequency]
            self._clocked.append((numbers, [self.graph.operations[number].instruction.kind for number in numbers]))

    def floored(self, begins: Sequence[int], ends: Sequence[int]) -> list[Pick]:
        """The slowest choices whose floored times fit the durations: how the exponential model is put to work."""
        assert self._unit is not None
        tick = round(self._unit * TICKS)
        kept = {choices: candidates(choices, self._unit) for choices in set(self.choices)}
        floors = {choices: [units(choice, self._unit) * tick for choice in some] for choices, some in kept.items()}
        picks = []
        for operation, choices, first, last in zip(self.graph.operations, self.choices, begins, ends):
            number = max(0, bisect_right(floors[choices], last - first) - 1)
            picks.append(self._pick(operation, kept[choices][number]))
        return picks

    def picked(self, chosen: Sequence[Choice]) -> list[Pick]:
        """Choices that somebody else made, one for each operation."""
        return [self._pick(operation, choice) for operation, choice in zip(self.graph.operations, chosen)]

    def frequencies(self, picks: Sequence[Pick]) -> tuple[tuple[tuple[str, int], ...], ...]:
        """For each rank, its instructions that have a frequency: (kind, MHz)."""
        clocks = [pick.frequency for pick in picks]
        return tuple(tuple(zip(kinds, [clocks[number] for number in row])) for row, kinds in self._clocked)

    def _price(self, operation: Node) -> tuple[Choices, Curve, Steps]:
        instruction, ranks, rebuilds, alone = operation
        key = (instruction.kind, instruction.stage, rebuilds, len(ranks), alone)
        if key not in self._priced:
            choices = self.menu.of(instruction.kind, instruction.stage, rebuilds) or (_NOTHING,)
            if not alone:
                choices = (_slowest(choices),)
            count, power = len(ranks) * self.replicas, self._power(operation)
            curve = hull(choices, count, power)
            kept: list[Pick] = []
            for pick in sorted(self._pick(operation, choice) for choice in choices):
                if not kept or pick.cost < kept[-1].cost:
                    kept.append(pick)
            steps = Steps(tuple(kept), tuple(pick.time for pick in kept), curve.times)
            if self._unit is not None and instruction.kind != REDUCE:
                curve = exponential(choices, count, power, self._unit)
            self._priced[key] = choices, curve, steps
        return self._priced[key]

    def _power(self, operation: Node) -> float:
        """What its ranks would take otherwise: nothing is saved by an operation beside which they compute."""
        return self.blocking_power if operation.alone else 0.0

    def _pick(self, operation: Node, choice: Choice) -> Pick:
        ranks, power = len(operation.ranks) * self.replicas, self._power(operation)
        return Pick(ticks_of(choice.time), effective_cost(choice.time, choice.energy, ranks, power), choice.frequency)


def _slowest(choices: Choices) -> Choice:
    """A reduction beside computation runs at the computation's clock, which is not its own to choose: it is given its
    longest time and its highest energy, and no frequency."""
    return Choice(0, max(choice.time for choice in choices), max(choice.energy for choice in choices))
