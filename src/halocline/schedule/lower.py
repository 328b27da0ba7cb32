"""Lowering: from compute orders to full instruction lists with send, receive, free, reduce and step.

All lists are cut from one global order of events: an operation stands at its start, a message at the end of what makes
it, a reduction when its last member is done. Every rank's list is that order restricted to the rank, so for each pair
of ranks both sides agree on the order of messages, and the lists can run even if every send blocks until its receive.
"""

from __future__ import annotations

from halocline.plan.layout import ACTIVATION, GRADIENT, Layout
from halocline.plan.plan import Plan
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FREE,
    RECEIVE,
    REDUCE,
    SEND,
    STEP,
    Instruction,
    Operation,
    Orders,
    Schedule,
)
from halocline.schedule.timing import times

_MESSAGE, _REDUCTION, _COMPUTE = range(3)
"""At equal times messages come before reductions and those before operations: what ends feeds what starts."""


def lower(plan: Plan, layout: Layout, orders: Orders) -> Schedule:
    events = _events(plan, layout, orders)
    ranks: list[list[Instruction]] = [[] for _ in orders]
    sent: list[list[Instruction]] = [[] for _ in orders]
    """Per rank, buffers sent since its last operation: freed after the next one, so that they travel behind it."""
    for _, order, _, operation in events:
        kind, pipe, stage, microbatch = operation
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
                row.append(Instruction(kind, pipe, stage, microbatch))
                if kind == BACKWARD_WEIGHT or (kind == BACKWARD and stage == 0):
                    row.append(Instruction(FREE, pipe, stage, microbatch))
                if sent[rank]:
                    row.extend(sent[rank])
                    sent[rank] = []
    for row, rest in zip(ranks, sent):
        row.extend(rest)
        row.append(Instruction(STEP))
    return Schedule(plan, layout, tuple(map(tuple, ranks)))


def _events(plan: Plan, layout: Layout, orders: Orders) -> list[tuple[float, int, int, Operation]]:
    last = len(plan.stages) - 1
    events: list[tuple[float, int, int, Operation]] = []
    finished: dict[int, tuple[float, Operation]] = {}
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
