"""A schedule with a price on each operation: its curve for the solver, its choices for the plans, and what a pick of
one choice per operation takes. It finds no optimum itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from halocline.energy.frontier.choices import Choice, Choices, Menu
from halocline.energy.frontier.curve import TICKS, Curve, hull, ticks_of
from halocline.energy.frontier.exponential import candidates, exponential, units
from halocline.energy.frontier.graph import Node, graph_of
from halocline.energy.frontier.rounding import Pick, Rounder, Steps, pick_of, steps_of
from halocline.energy.profile.table import ProfileTable
from halocline.schedule.instruction import REDUCE, Schedule

COSTS = ("hull", "exponential")
"""What an operation's cost between its choices is taken to be."""

_NOTHING = Choice(0, 0.0, 0.0)
"""The one choice of an operation that takes no time: a reduction that was not measured."""


class Pricing:
    """The operations of a schedule with their prices."""

    def __init__(
        self,
        schedule: Schedule,
        profile: ProfileTable,
        blocking_power: float,
        latency: float,
        unit: float | None,
    ) -> None:
        """`unit`: seconds of the exponential cost model; None takes the hull."""
        self.graph = graph_of(schedule)
        self.blocking_power = blocking_power
        self.replicas = schedule.plan.replicas
        self.waiting_power = blocking_power * schedule.plan.world_size
        """Watts of all ranks if all waited."""
        self.latency = ticks_of(latency)
        self._unit = unit
        self._menu = Menu(profile, schedule.plan)
        self._priced: dict[tuple[object, ...], tuple[Choices, Curve, Steps]] = {}
        priced = [self._price(operation) for operation in self.graph.operations]
        self.choices = [choices for choices, _, _ in priced]
        self.curves = [curve for _, curve, _ in priced]
        waits = [(first, then, self.latency if message else 0) for first, then, message in self.graph.edges]
        self._rounder = Rounder([steps for _, _, steps in priced], waits)
        self._clocked = [self._clocked_row(row) for row in self.graph.rows]

    # -- picks -----------------------------------------------------------------------------------------------------

    def rounded(self, begins: Sequence[int], ends: Sequence[int], deadline: int, good: float) -> list[Pick]:
        """Optimal moments rounded to choices, within the deadline. A cost of `good` joules needs no further try."""
        return self._rounder.round(begins, ends, deadline, good)

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

    def at_maximum(self) -> list[Pick]:
        """Everything at its highest frequency."""
        return [self._pick(operation, choices[0]) for operation, choices in zip(self.graph.operations, self.choices)]

    def makespan(self, picks: Sequence[Pick]) -> int:
        """Ticks from the first operation to the end of the last."""
        return self._rounder.makespan(picks)

    def frequencies(self, picks: Sequence[Pick]) -> tuple[tuple[tuple[str, int], ...], ...]:
        """For each rank, its instructions that have a frequency: (kind, MHz)."""
        clocks = [pick.frequency for pick in picks]
        return tuple(tuple(zip(kinds, [clocks[number] for number in row])) for row, kinds in self._clocked)

    # -- prices ----------------------------------------------------------------------------------------------------

    def _price(self, operation: Node) -> tuple[Choices, Curve, Steps]:
        instruction, ranks, rebuilds, alone = operation
        key = (instruction.kind, instruction.stage, rebuilds, len(ranks), alone)
        if key not in self._priced:
            choices = self._menu.of(instruction.kind, instruction.stage, rebuilds) or (_NOTHING,)
            if not alone:
                choices = (_slowest(choices),)
            count, power = len(ranks) * self.replicas, self._power(operation)
            if self._unit is None or instruction.kind == REDUCE:
                curve = hull(choices, count, power)
            else:
                curve = exponential(choices, count, power, self._unit)
            self._priced[key] = choices, curve, steps_of(choices, count, power)
        return self._priced[key]

    def _power(self, operation: Node) -> float:
        """What its ranks would take otherwise: nothing is saved by an operation beside which they compute."""
        return self.blocking_power if operation.alone else 0.0

    def _pick(self, operation: Node, choice: Choice) -> Pick:
        return pick_of(choice, len(operation.ranks) * self.replicas, self._power(operation))

    def _clocked_row(self, row: tuple[int, ...]) -> tuple[list[int], list[str]]:
        """Of a rank's operations, those that have a frequency, and their kinds."""
        numbers = [number for number in row if self.choices[number][0].frequency]
        return numbers, [self.graph.operations[number].instruction.kind for number in numbers]


def _slowest(choices: Choices) -> Choice:
    """A reduction beside computation runs at the computation's clock, which is not its own to choose: it is given its
    longest time and its highest energy, and no frequency."""
    return Choice(0, max(choice.time for choice in choices), max(choice.energy for choice in choices))
