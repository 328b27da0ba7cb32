"""The timeline of a plan of frequencies: when each operation would run, how long and at what, by a profile. It draws
nothing; the page does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from halocline.energy.frontier.choices import Menu
from halocline.energy.frontier.graph import Graph
from halocline.energy.profile.table import ProfileTable, Row
from halocline.schedule.instruction import BACKWARD, COMPUTE, FORWARD, RECOMPUTE


class TimelineBar(NamedTuple):
    """One computation of one rank."""

    rank: int
    kind: str
    stage: int
    microbatch: int
    start: float
    end: float
    frequency: int


def nominal_profile(frequencies: Iterable[int], stages: int) -> ProfileTable:
    """A profile where none was measured, to show the order of things: a backward takes twice a forward, and both take
    longer as the clock is lower."""
    known = sorted(set(frequencies), reverse=True) or [1]
    return ProfileTable(
        tuple(
            Row(stage, kind, frequency, length * known[0] / frequency, 0.0)
            for stage in range(stages)
            for kind, length in ((FORWARD, 1.0), (BACKWARD, 2.0), (RECOMPUTE, 1.0))
            for frequency in known
        )
    )


def timeline(graph: Graph, menu: Menu, frequencies: Sequence[Sequence[tuple[str, int]]]) -> list[TimelineBar]:
    """A plan's: `frequencies` has for each local rank its computations in order, with their MHz."""
    before: list[list[int]] = [[] for _ in graph.operations]
    for first, then, _ in graph.edges:
        before[then].append(first)
    rows = [iter(row) for row in frequencies]
    bars: list[TimelineBar] = []
    ends: list[float] = []
    for operation, awaited in zip(graph.operations, before):
        kind, _, stage, microbatch, _, _ = operation.instruction
        start = max((ends[first] for first in awaited), default=0.0)
        if kind not in COMPUTE:  # no computation waits for it
            ends.append(start)
            continue
        wanted = max([next(rows[rank])[1] for rank in operation.ranks])
        choices = menu.of(kind, stage, operation.rebuilds)
        chosen = min(choices, key=lambda choice: abs(choice.frequency - wanted))
        ends.append(start + chosen.time)
        bars += [TimelineBar(rank, kind, stage, microbatch, start, ends[-1], wanted) for rank in operation.ranks]
    return bars
