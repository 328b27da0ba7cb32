"""Lowering: from compute orders to full instruction lists with send, receive, free, reduce and step.

All lists are cut from one global order of events: an operation stands at its start, a message at the end of what makes
it, a reduction when its last member is done. Every rank's list is that order restricted to the rank, so for each pair
of ranks both sides agree on the order of messages, and the lists can run even if every send blocks until its receive.
"""

from __future__ import annotations

from collections.abc import Mapping

from halocline.plan.layout import ACTIVATION, GRADIENT, Layout
from halocline.plan.plan import Plan
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FREE,
    RECEIVE,
    RECOMPUTE,
    REDUCE,
    SEND,
    STEP,
    Instruction,
    Orders,
    Schedule,
)

DURATIONS: Mapping[str, float] = {
    FORWARD: 1.0,
    RECOMPUTE: 1.0,
    BACKWARD: 2.0,
    BACKWARD_INPUT: 1.0,
    BACKWARD_WEIGHT: 1.0,
}
"""What every operation takes, nominally. It decides only where messages stand among operations, not whether they are
right."""
_MESSAGE, _REDUCTION, _COMPUTE = range(3)
"""At equal times messages come before reductions and those before operations: what ends feeds what starts."""


def lower(plan: Plan, layout: Layout, orders: Orders) -> Schedule:
    events = _events(plan, layout, orders)
    ranks: list[list[Instruction]] = [[] for _ in orders]
    sent: list[list[Instruction]] = [[] for _ in orders]
    """Per rank, buffers sent since its last operation: freed after the next one, so that they travel behind it."""
    for _, order, _, operation in events:
        kind, pipe, stage, microbatch, _, _ = operation
        if order == _MESSAGE:
            what, boundary = (ACTIVATION, stage) if kind == FORWARD else (GRADIENT, stage - 1)
            for source, target in layout.links(pipe, boundary, what):
                ranks[source].append(Instruction(SEND, pipe, boundary, microbatch, what, target))
                ranks[target].append(Instruction(RECEIVE, pipe, boundary, microbatch, what, source))
                sent[source].append(Instruction(FREE, pipe, boundary, microbatch, what, target))
            if kind == BACKWARD:  # the gradient was the last thing still needed of this microbatch
                for rank in layout.team(pipe, stage):
                    ranks[rank].append(Instruction(FREE, pipe, stage, microbatch))
        elif order == _REDUCTION:
            for rank in _members(plan, layout, stage):
                ranks[rank].append(Instruction(REDUCE, 0, stage))
        else:
            for rank in layout.team(pipe, stage):
                row = ranks[rank]
                row.append(operation)
                if kind == BACKWARD_WEIGHT or (kind == BACKWARD and stage == 0):
                    row.append(Instruction(FREE, pipe, stage, microbatch))
                if sent[rank]:
                    row.extend(sent[rank])
                    sent[rank] = []
    for row, rest in zip(ranks, sent):
        row.extend(rest)
        row.append(Instruction(STEP))
    return Schedule(plan, layout, tuple(map(tuple, ranks)))


def _events(plan: Plan, layout: Layout, orders: Orders) -> list[tuple[float, int, int, Instruction]]:
    last = len(plan.stages) - 1
    events: list[tuple[float, int, int, Instruction]] = []
    finished: dict[int, tuple[float, Instruction]] = {}
    for number, (operation, (start, end)) in enumerate(times(plan, layout, orders).items()):
        events.append((start, _COMPUTE, number, operation))
        down = operation.kind == FORWARD and operation.stage < last
        up = operation.kind in (BACKWARD, BACKWARD_INPUT) and operation.stage > 0
        if down or up:
            events.append((end, _MESSAGE, number, operation))
        if operation.kind in (BACKWARD, BACKWARD_WEIGHT):
            if operation.stage not in finished or end >= finished[operation.stage][0]:
                finished[operation.stage] = end, operation
    for stage, (end, operation) in finished.items():
        if layout.reduces(stage):
            events.append((end, _REDUCTION, stage, operation))
    events.sort()
    return events


def _members(plan: Plan, layout: Layout, stage: int) -> list[int]:
    """The ranks of one replica that hold the stage, in either pipe."""
    return sorted({rank for pipe in range(plan.pipes) for rank in layout.team(pipe, stage)})


def times(
    plan: Plan, layout: Layout, orders: Orders, durations: Mapping[str, float] = DURATIONS
) -> dict[Instruction, tuple[float, float]]:
    """Start and end of every operation, in a dict ordered so that each comes after all that it waits for."""
    last = len(plan.stages) - 1
    position = [0] * len(orders)
    clock = [0.0] * len(orders)
    arrived: dict[Instruction, int] = {}
    result: dict[Instruction, tuple[float, float]] = {}
    blocked: dict[Instruction, Instruction] = {}
    """An operation not yet run -> the one whose team stands ready and waits for its data."""
    ready: list[Instruction] = []

    def arrive(rank: int) -> None:
        if position[rank] < len(orders[rank]):
            operation = orders[rank][position[rank]]
            arrived[operation] = arrived.get(operation, 0) + 1
            if arrived[operation] == len(layout.team(operation.pipe, operation.stage)):
                ready.append(operation)

    for rank in range(len(orders)):
        arrive(rank)
    while ready:
        operation = ready.pop()
        source = source_of(operation, last)
        start = 0.0
        if source is not None:
            if source not in result and source.kind == BACKWARD:
                source = source._replace(kind=BACKWARD_INPUT)  # the other name a schedule may give it
            if source not in result:
                blocked[source] = operation
                blocked[source._replace(kind=BACKWARD) if source.kind == BACKWARD_INPUT else source] = operation
                continue
            start = result[source][1]
        team = layout.team(operation.pipe, operation.stage)
        start = max(start, max(clock[rank] for rank in team))
        end = start + durations[operation.kind] / plan.chunks
        result[operation] = start, end
        for rank in team:
            clock[rank] = end
            position[rank] += 1
            arrive(rank)
        if operation in blocked:
            ready.append(blocked.pop(operation))
    for rank, order in enumerate(orders):
        assert position[rank] == len(order), f"the order of rank {rank} cannot go on at {order[position[rank]]}"
    return result


def source_of(operation: Instruction, last: int) -> Instruction | None:
    """The operation of another stage whose tensor this one waits for; those of its own stage stand before it anyway."""
    if operation.kind == FORWARD and operation.stage:
        return operation._replace(stage=operation.stage - 1)
    if operation.kind in (BACKWARD, BACKWARD_INPUT) and operation.stage < last:
        return operation._replace(kind=BACKWARD, stage=operation.stage + 1)
    return None
