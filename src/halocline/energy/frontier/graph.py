"""The graph: which operation waits for which, read off a schedule's instruction list. Prices nothing.

Each operation is what a whole team does at once. It waits for what stands before it in each of its ranks' lists, and
for the messages it receives, each of which leaves when its sender has come to it. Reductions run beside the
computation, one after the other on each rank. (The simulator keeps the same rules.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from halocline.plan.layout import ACTIVATION, GRADIENT
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
    recomputed = {row for rank in schedule.ranks for row in rank if row.kind == RECOMPUTE}
    operations: list[Node] = []
    edges: dict[tuple[int, int], bool] = {}
    rows: list[list[int]] = [[] for _ in schedule.ranks]
    computed: list[int | None] = [None for _ in rows]
    """Per rank, its latest computation."""
    reduced: list[int | None] = [None for _ in rows]
    """Per rank, its latest reduction."""
    arriving: dict[tuple[str, int, int, int], list[int]] = {}
    """(what, pipe, consuming stage, microbatch) -> operations whose messages it waits for."""

    def wait(first: int | None, then: int, message: bool = False) -> None:
        """Between two operations the later of a hand-over and a message counts, which is the message."""
        if first is not None:
            edges[first, then] = message or edges.get((first, then), False)

    for instruction, ranks in walk(schedule):
        kind, pipe, stage, microbatch, what, _ = instruction
        number = len(operations)
        if kind == SEND:
            sender = computed[ranks[0]]
            if sender is not None:
                consumer = stage + 1 if what == ACTIVATION else stage
                arriving.setdefault((what, pipe, consumer, microbatch), []).append(sender)
        elif kind in COMPUTE:
            backward = kind in (BACKWARD, BACKWARD_INPUT)
            rebuilds = (
                backward
                and schedule.plan.stages[stage].recompute
                and instruction._replace(kind=RECOMPUTE) not in recomputed
            )
            operations.append(Node(instruction, ranks, rebuilds))
            for rank in ranks:
                wait(computed[rank], number)
                computed[rank] = number
                rows[rank].append(number)
            if backward or kind == FORWARD:
                needed = GRADIENT if backward else ACTIVATION
                for sender in arriving.pop((needed, pipe, stage, microbatch), ()):
                    wait(sender, number, message=True)
        elif kind == REDUCE:
            operations.append(Node(instruction, ranks, alone=_is_last(schedule, instruction, ranks)))
            for rank in ranks:
                wait(computed[rank], number)
                wait(reduced[rank], number)
                reduced[rank] = number
                rows[rank].append(number)
    found = tuple(Edge(first, then, message) for (first, then), message in edges.items())
    return Graph(tuple(operations), found, tuple(map(tuple, rows)))


def _is_last(schedule: Schedule, instruction: Instruction, ranks: tuple[int, ...]) -> bool:
    """Whether no rank computes after it."""
    rest = (row[row.index(instruction) :] for row in (schedule.ranks[rank] for rank in ranks))
    return not any(other.kind in COMPUTE for row in rest for other in row)
