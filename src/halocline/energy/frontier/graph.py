"""The graph: which operation waits for which, read off a schedule's instruction list. Prices nothing.

Each operation is what a whole team does at once. It waits for what stands before it in each of its ranks' lists, and
for the messages it receives, each of which leaves when its sender has come to it. Reductions run beside the
computation, one after the other on each rank. (The simulator keeps the same rules.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from halocline.plan.layout import ACTIVATION
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    COMPUTE,
    FORWARD,
    RECOMPUTE,
    REDUCE,
    SEND,
    Instruction,
    Schedule,
)
from halocline.schedule.walk import walk


class Node(NamedTuple):
    """A node of the graph."""

    instruction: Instruction
    ranks: tuple[int, ...]
    """The team (of one replica) that executes it together, at one frequency."""
    rebuilds: bool = False
    """A backward that first recomputes its stage's activations."""
    alone: bool = True
    """Whether its ranks do nothing else meanwhile; not so for a reduction with computation beside it."""


class Edge(NamedTuple):
    """`then` begins when `first` has ended, or a message's latency later."""

    first: int
    then: int
    message: bool


@dataclass(frozen=True)
class Graph:
    """Operations in an order in which they can run, and what waits for what."""

    operations: tuple[Node, ...]
    edges: tuple[Edge, ...]
    rows: tuple[tuple[int, ...], ...]
    """For each rank, its operations in the order of its list."""


def graph_of(schedule: Schedule) -> Graph:
    """The graph of a schedule, of any plan."""
    return _Reading(schedule).graph()


class _Reading:
    """The state of one walk over a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        ranks = range(len(schedule.ranks))
        self.schedule = schedule
        self.recomputed = {row for rank in schedule.ranks for row in rank if row.kind == RECOMPUTE}
        self.operations: list[Node] = []
        self.edges: dict[tuple[int, int], bool] = {}
        self.rows: list[list[int]] = [[] for _ in ranks]
        self.last: list[int | None] = [None for _ in ranks]
        """Per rank, its latest computation."""
        self.reduced: list[int | None] = [None for _ in ranks]
        """Per rank, its latest reduction."""
        self.arriving: dict[tuple[str, int, int, int], list[int]] = {}
        """(what, pipe, consuming stage, microbatch) -> operations whose messages it waits for."""

    def graph(self) -> Graph:
        for instruction, ranks in walk(self.schedule):
            if instruction.kind in COMPUTE:
                self._compute(instruction, ranks)
            elif instruction.kind == SEND:
                self._message(instruction, ranks[0])
            elif instruction.kind == REDUCE:
                self._reduce(instruction, ranks)
        edges = tuple(Edge(first, then, message) for (first, then), message in self.edges.items())
        return Graph(tuple(self.operations), edges, tuple(map(tuple, self.rows)))

    def _compute(self, instruction: Instruction, team: tuple[int, ...]) -> None:
        kind, pipe, stage, microbatch, _, _ = instruction
        rebuilds = (
            kind in (BACKWARD, BACKWARD_INPUT)
            and self.schedule.plan.stages[stage].recompute
            and instruction._replace(kind=RECOMPUTE) not in self.recomputed
        )
        number = self._add(Node(instruction, team, rebuilds))
        for rank in team:
            self._wait(self.last[rank], number)
            self.last[rank] = number
        if kind in (FORWARD, BACKWARD, BACKWARD_INPUT):
            what = "activation" if kind == FORWARD else "gradient"
            for sender in self.arriving.pop((what, pipe, stage, microbatch), ()):
                self._wait(sender, number, message=True)

    def _message(self, instruction: Instruction, source: int) -> None:
        _, pipe, stage, microbatch, what, _ = instruction
        sender = self.last[source]
        if sender is not None:
            consumer = stage + 1 if what == ACTIVATION else stage
            self.arriving.setdefault((what, pipe, consumer, microbatch), []).append(sender)

    def _reduce(self, instruction: Instruction, ranks: tuple[int, ...]) -> None:
        number = self._add(Node(instruction, ranks, alone=self._is_last(instruction, ranks)))
        for rank in ranks:
            self._wait(self.last[rank], number)
            self._wait(self.reduced[rank], number)
            self.reduced[rank] = number

    def _is_last(self, instruction: Instruction, ranks: tuple[int, ...]) -> bool:
        """Whether no rank computes after it."""
        for rank in ranks:
            row = self.schedule.ranks[rank]
            if any(other.kind in COMPUTE for other in row[row.index(instruction) :]):
                return False
        return True

    def _add(self, operation: Node) -> int:
        number = len(self.operations)
        self.operations.append(operation)
        for rank in operation.ranks:
            self.rows[rank].append(number)
        return number

    def _wait(self, first: int | None, then: int, message: bool = False) -> None:
        """Between two operations the later of a hand-over and a message counts, which is the message."""
        if first is not None:
            self.edges[first, then] = message or self.edges.get((first, then), False)
