"""A list scheduler: at every moment each idle team starts the most urgent operation that is ready and admitted.

It serves the schedules that have no closed form on every plan (chimera, capped). The order it returns was executed here
in full, teams meeting as they will at run time, so it cannot deadlock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import product

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.schedule.instruction import BACKWARD, FORWARD, Instruction, Orders

PerStage = Sequence[float] | None
"""A number for each stage, or what suits all."""


def list_schedule(
    plan: Plan,
    layout: Layout,
    *,
    cap: float,
    weights: PerStage = None,
    forward: PerStage = None,
    backward: PerStage = None,
) -> Orders:
    """Orders that keep every rank's live activations at or below `cap`.

    `weights[s]` is what one microbatch of stage s occupies on each of its ranks; `forward[s]` and `backward[s]` are
    durations. A forward starts only if afterwards all microbatches in flight can still finish one after the other
    (the banker's test), so memory can never lock two pipes that wait for each other's space.
    """
    stages = len(plan.stages)
    weights = weights or [1.0] * stages
    forward = forward or [1.0] * stages
    backward = backward or [1.0] * stages
    bank = _Bank(plan, layout, cap, weights)

    places = product((FORWARD, BACKWARD), range(plan.pipes), range(stages))
    queues: dict[tuple[str, int, int], list[int]] = {place: [] for place in places}
    for microbatch in range(plan.microbatches):
        queues[FORWARD, plan.pipe_of(microbatch), 0].append(microbatch)

    orders: Orders = [[] for _ in range(layout.ranks_per_replica)]
    idle = [True] * layout.ranks_per_replica
    running: list[tuple[float, int, Instruction]] = []
    now, started, left = 0.0, 0, 2 * stages * plan.microbatches
    while left:
        heads = [Instruction(kind, pipe, stage, queue[0]) for (kind, pipe, stage), queue in queues.items() if queue]
        for operation in sorted(heads, key=_backward_first):
            team = layout.team(operation.pipe, operation.stage)
            if not all(idle[rank] for rank in team):
                continue
            if operation.kind == FORWARD:
                if not bank.admits(operation):
                    continue
                bank.take(operation)
            queues[operation[:3]].pop(0)
            for rank in team:
                idle[rank] = False
                orders[rank].append(operation)
            seconds = (forward if operation.kind == FORWARD else backward)[operation.stage]
            heapq.heappush(running, (now + seconds, started, operation))
            started += 1
            left -= 1
        if not running:
            if left:
                raise ValueError(
                    f"cap = {cap:g} does not hold one microbatch of the largest stage ({max(weights):g}): "
                    f"use cap = {max(weights):g} or more, more stages, or recompute"
                )
            break
        now = running[0][0]
        while running and running[0][0] == now:
            _, _, done = heapq.heappop(running)
            for rank in layout.team(done.pipe, done.stage):
                idle[rank] = True
            follow = _successor(done, stages)
            if done.kind == BACKWARD:
                bank.give(done)
            if follow is not None:
                heapq.heappush(queues[follow[:3]], follow.microbatch)
    return orders


def _backward_first(operation: Instruction) -> tuple[float, ...]:
    """Backwards before forwards (they free memory), older microbatches first, deeper stages first."""
    return (operation.kind == FORWARD, operation.microbatch, -operation.stage)


def _successor(done: Instruction, stages: int) -> Instruction | None:
    if done.kind == FORWARD:
        if done.stage + 1 < stages:
            return done._replace(stage=done.stage + 1)
        return done._replace(kind=BACKWARD)
    return done._replace(stage=done.stage - 1) if done.stage else None


class _Bank:
    """Live activations per rank, and the banker's test for one more.

    Microbatches on their way back need no more room, so only those still on their way down count. A pipe is first in,
    first out: if the foremost of its descending microbatches finds room on all stages ahead, it frees a place for each
    one behind it, and the whole pipe drains. So two pipes are safe if one drains and then, with its room, the other.
    """

    def __init__(self, plan: Plan, layout: Layout, cap: float, weights: Sequence[float]) -> None:
        ranks = range(layout.ranks_per_replica)
        self.stages = len(plan.stages)
        self.weights = weights
        self.teams = [[layout.team(pipe, stage) for stage in range(self.stages)] for pipe in range(plan.pipes)]
        self.cap = cap * (1 + 1e-9)  # weights added and taken away again leave their rounding
        self.free = [self.cap for _ in ranks]
        self.descending = [[0.0 for _ in ranks] for _ in range(plan.pipes)]
        """What the microbatches on their way down hold, per pipe and rank."""
        self.front: list[deque[list[int]]] = [deque() for _ in range(plan.pipes)]
        """Per pipe, [microbatch, stages reached] of each descending microbatch, foremost first."""

    def take(self, operation: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = operation
        self._book(self.free, pipe, stage, -1)
        self._book(self.descending[pipe], pipe, stage, +1)
        if stage == 0:
            self.front[pipe].append([microbatch, 0])
        if stage < self.stages - 1:
            next(flight for flight in self.front[pipe] if flight[0] == microbatch)[1] = stage + 1
        else:
            assert self.front[pipe].popleft()[0] == microbatch
            for passed in range(self.stages):
                self._book(self.descending[pipe], pipe, passed, -1)

    def give(self, operation: Instruction) -> None:
        self._book(self.free, operation.pipe, operation.stage, +1)

    def admits(self, operation: Instruction) -> bool:
        _, pipe, stage, microbatch, _, _ = operation
        if any(self.free[rank] < self.weights[stage] for rank in self.teams[pipe][stage]):
            return False
        if len(self.teams) == 1 or stage == self.stages - 1:
            return True
        room = [self.cap - a - b for a, b in zip(*self.descending)]
        self._book(room, pipe, stage, -1)
        ahead = [flights[0][1] if flights else self.stages for flights in self.front]
        if not self.front[pipe] or self.front[pipe][0][0] == microbatch:
            ahead[pipe] = stage + 1
        for first in (pipe, 1 - pipe):
            if not self._drains(room, first, ahead[first]):
                continue
            after = [a + b for a, b in zip(room, self.descending[first])]
            if first == pipe:
                self._book(after, pipe, stage, +1)
            if self._drains(after, 1 - first, ahead[1 - first]):
                return True
        return False

    def _drains(self, room: list[float], pipe: int, ahead: int) -> bool:
        return all(room[r] >= self.weights[s] for s in range(ahead, self.stages) for r in self.teams[pipe][s])

    def _book(self, amounts: list[float], pipe: int, stage: int, sign: int) -> None:
        weight = sign * self.weights[stage]
        for rank in self.teams[pipe][stage]:
            amounts[rank] += weight
