"""When each operation of the orders would run if every forward took 1 and every backward 2: the one global order from
which messages are placed. Durations decide only where messages stand among operations, not whether they are right.
"""

from __future__ import annotations

from collections.abc import Mapping

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    RECOMPUTE,
    Operation,
    Orders,
)

DURATIONS: Mapping[str, float] = {
    FORWARD: 1.0,
    RECOMPUTE: 1.0,
    BACKWARD: 2.0,
    BACKWARD_INPUT: 1.0,
    BACKWARD_WEIGHT: 1.0,
}


def times(
    plan: Plan, layout: Layout, orders: Orders, durations: Mapping[str, float] = DURATIONS
) -> dict[Operation, tuple[float, float]]:
    """Start and end of every operation, in a dict ordered so that each comes after all that it waits for."""
    last = len(plan.stages) - 1
    position = [0] * len(orders)
    clock = [0.0] * len(orders)
    arrived: dict[Operation, int] = {}
    result: dict[Operation, tuple[float, float]] = {}
    blocked: dict[Operation, Operation] = {}
    """An operation not yet run -> the one whose team stands ready and waits for its data."""
    ready: list[Operation] = []

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


def source_of(operation: Operation, last: int) -> Operation | None:
    """The operation of another stage whose tensor this one waits for; those of its own stage stand before it anyway."""
    if operation.kind == FORWARD and operation.stage:
        return operation._replace(stage=operation.stage - 1)
    if operation.kind in (BACKWARD, BACKWARD_INPUT) and operation.stage < last:
        return operation._replace(kind=BACKWARD, stage=operation.stage + 1)
    return None
