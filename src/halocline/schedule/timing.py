"""When each operation of the orders would run if every forward took 1 and every backward 2: the one global order from
which messages are placed. Durations decide only where messages stand among the operations, never whether they are right.
"""

from __future__ import annotations

from collections import deque

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

_DURATION = {FORWARD: 1.0, RECOMPUTE: 1.0, BACKWARD: 2.0, BACKWARD_INPUT: 1.0, BACKWARD_WEIGHT: 1.0}


def times(plan: Plan, layout: Layout, orders: Orders) -> dict[Operation, tuple[float, float]]:
    """Start and end of every operation, in a dict ordered so that each comes after all that it waits for."""
    last = len(plan.stages) - 1
    position = [0] * len(orders)
    clock = [0.0] * len(orders)
    arrived: dict[Operation, int] = {}
    result: dict[Operation, tuple[float, float]] = {}
    waiting: dict[Operation, list[Operation]] = {}
    """Operation not yet run -> operations whose whole team stands ready and waits only for its data."""

    def run(operation: Operation, ready: float) -> None:
        team = layout.team(operation.pipe, operation.stage)
        start = max(ready, max(clock[rank] for rank in team))
        end = start + _DURATION[operation.kind] / plan.chunks
        result[operation] = start, end
        for rank in team:
            clock[rank] = end
            position[rank] += 1
            arrive(rank)
        if operation in waiting:
            runnable.extend(waiting.pop(operation))

    def arrive(rank: int) -> None:
        if position[rank] == len(orders[rank]):
            return
        operation = orders[rank][position[rank]]
        arrived[operation] = arrived.get(operation, 0) + 1
        if arrived[operation] == len(layout.team(operation.pipe, operation.stage)):
            runnable.append(operation)

    runnable: deque[Operation] = deque()
    for rank in range(len(orders)):
        arrive(rank)
    while runnable:
        operation = runnable.popleft()
        ready = 0.0
        for source in sources(operation, last):
            candidates = [result[s] for s in source if s in result]
            if not candidates:
                waiting.setdefault(source[0], []).append(operation)
                if len(source) > 1:
                    waiting.setdefault(source[1], []).append(operation)
                break
            ready = max(ready, candidates[0][1])
        else:
            if operation not in result:
                run(operation, ready)
    for rank, order in enumerate(orders):
        if position[rank] < len(order):
            stuck = order[position[rank]]
            raise AssertionError(f"the order of rank {rank} cannot go on at {stuck}")
    return result


def sources(operation: Operation, last: int) -> list[tuple[Operation, ...]]:
    """What an operation waits for: each entry is one operation under the names a schedule may give it."""
    kind, _, stage, _ = operation
    if kind == FORWARD:
        return [(operation._replace(stage=stage - 1),)] if stage else []
    if kind == BACKWARD_WEIGHT:
        return [(operation._replace(kind=BACKWARD_INPUT),)]
    needed: list[tuple[Operation, ...]] = [(operation._replace(kind=FORWARD),)]
    if kind != RECOMPUTE and stage < last:
        below = operation._replace(stage=stage + 1)
        needed.append((below._replace(kind=BACKWARD), below._replace(kind=BACKWARD_INPUT)))
    return needed
