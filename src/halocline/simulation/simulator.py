"""The simulator: runs a schedule on a clock. It knows instructions and costs, and nothing of how either was made.

- An operation starts when every rank of its team is free and all that it receives has arrived.
- Neither send nor receive blocks. A message goes out when its ordered pair of ranks is free, takes bytes / bandwidth to
  leave and arrives a latency later.
- Freeing a sent buffer waits until its last byte has left.
- A backward of a stage that keeps only its input first recomputes, unless a recompute stood before it.
- A reduction starts when all its ranks have come to it and runs beside the computation; the step waits for it.

Memory is counted along each rank's list, as an allocator meets it: what stands between an allocation and its free is
held at the same time, whatever the durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from halocline.plan.layout import ACTIVATION, GRADIENT
from halocline.plan.plan import Plan
from halocline.schedule.generate import generate
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
    Schedule,
)
from halocline.schedule.walk import walk
from halocline.simulation.costs import Costs, StageCosts


class Event(NamedTuple):
    """When a rank did an instruction, in a simulation or in a real run: the drawings take either."""

    rank: int
    instruction: Instruction
    start: float
    """Compute: when the team began. Send: when the link took the message. Receive: when the rank asked for it."""
    end: float
    """Compute: when it was done. Send: when the last byte had left. Receive: when the message was there."""
    wait: float = 0.0
    """Compute: how long the rank stood idle before it. Receive: from asking to arrival."""


@dataclass(frozen=True)
class Simulation:
    """What a schedule costs. Lists have one entry per rank of a replica; all replicas run alike."""

    makespan: float
    """Time of one step, from the first instruction to the end of the last."""
    busy: tuple[float, ...]
    """Time each rank computes."""
    peak_activations: tuple[int, ...]
    """The most (stage, microbatch) activations a rank holds at once."""
    peak_inputs: tuple[int, ...]
    """The most inputs a rank keeps at once for stages that will recompute the rest."""
    peak_memory: tuple[float, ...]
    """Bytes: weights, activations, kept inputs, received and sent buffers."""
    events: tuple[Event, ...] = ()
    """Every computation, message, reduction and step, where asked for."""

    @property
    def bubble(self) -> float:
        """The share of the makespan in which the average rank does not compute."""
        # Rounding may make ranks that never wait a little busier than the makespan is long.
        return max(0.0, 1 - sum(self.busy) / len(self.busy) / self.makespan) if self.makespan else 0.0


def scheduled(plan: Plan, costs: Costs) -> Schedule:
    """The plan's schedule. Capped admits work by its costs, so it is told them."""
    rows = costs.per_stage(plan)
    return generate(
        plan,
        weights=[row.activation_bytes for row in rows] if any(row.activation_bytes for row in rows) else None,
        forward=[row.forward for row in rows],
        backward=[row.backward + (row.recompute if s.recompute else 0) for row, s in zip(rows, plan.stages)],
    )


def simulate(planned: Plan | Schedule, costs: Costs | None = None, *, events: bool = False) -> Simulation:
    """Prices a schedule, or a plan's; `events` also keeps what happened when, for drawings."""
    costs = costs or Costs()
    schedule = scheduled(planned, costs) if isinstance(planned, Plan) else planned
    run = _Run(schedule, costs, events)
    others = {SEND: run.message, FREE: run.free, REDUCE: run.reduce, STEP: run.step}
    for instruction, ranks in walk(schedule):
        others.get(instruction.kind, run.compute)(instruction, ranks)
    return run.result()


class _Run:
    """The state of one simulation: a clock, the memory and the counts of every rank."""

    def __init__(self, schedule: Schedule, costs: Costs, keep_events: bool) -> None:
        ranks = range(len(schedule.ranks))
        self.plan = schedule.plan
        self.stages = costs.per_stage(schedule.plan)
        self.latency, self.bandwidth, self.step_time = costs.latency, costs.bandwidth, costs.step
        self.durations = _durations(schedule, self.stages)
        self.recomputed = {row for rank in schedule.ranks for row in rank if row.kind == RECOMPUTE}
        self.message_bytes, self.outgoing = _message_bytes(schedule, self.stages)
        self.clock = [0.0 for _ in ranks]
        self.busy = [0.0 for _ in ranks]
        self.reducing = [0.0 for _ in ranks]
        """When each rank's last reduction ends."""
        self.link_free: dict[tuple[int, int], float] = {}
        self.arrivals: dict[tuple[int, str, int, int, int], float] = {}
        """(rank, what, pipe, consuming stage, microbatch) -> when the last message of it is there."""
        self.departures: dict[tuple[int, Instruction], float] = {}
        """(rank, the free of the sent buffer) -> when its last byte has left."""
        self.received: dict[tuple[int, str, int, int, int], float] = {}
        self.memory = [_weights(schedule, rank, self.stages) for rank in ranks]
        self.peak_memory = list(self.memory)
        self.activations = [0 for _ in ranks]
        self.peak_activations = [0 for _ in ranks]
        self.inputs = [0 for _ in ranks]
        self.peak_inputs = [0 for _ in ranks]
        self.events: list[Event] | None = [] if keep_events else None

    def compute(self, instruction: Instruction, team: tuple[int, ...]) -> None:
        kind, pipe, stage, microbatch, _, _ = instruction
        what = ACTIVATION if kind == FORWARD else GRADIENT
        needs_message = kind in (FORWARD, BACKWARD, BACKWARD_INPUT)
        start = 0.0
        for rank in team:
            start = max(start, self.clock[rank])
            if needs_message:
                start = max(start, self.arrivals.pop((rank, what, pipe, stage, microbatch), 0.0))
        duration = self.durations[kind, stage]
        rebuilds = kind in (BACKWARD, BACKWARD_INPUT) and self.plan.stages[stage].recompute
        if rebuilds and instruction._replace(kind=RECOMPUTE) in self.recomputed:
            duration -= self.stages[stage].recompute
            rebuilds = False
        for rank in team:
            self._note(rank, instruction, start, start + duration, start - self.clock[rank])
            self.clock[rank] = start + duration
            self.busy[rank] += duration
            if kind == BACKWARD_WEIGHT:
                continue
            received = self.received.pop((rank, what, pipe, stage, microbatch), 0.0) if needs_message else 0.0
            if kind == FORWARD and self.plan.stages[stage].recompute:
                self._hold(rank, self._input_bytes(stage) - received)
                self.inputs[rank] += 1
                self.peak_inputs[rank] = max(self.peak_inputs[rank], self.inputs[rank])
            elif kind == FORWARD or kind == RECOMPUTE or rebuilds:
                # A received input is from now on among the activations; a received gradient lives beside them.
                self._hold(rank, self.stages[stage].activation_bytes - (received if kind == FORWARD else 0.0))
                self.activations[rank] += 1
                self.peak_activations[rank] = max(self.peak_activations[rank], self.activations[rank])
            if needs_message:
                self._hold(rank, self.outgoing.get((pipe, stage if kind == FORWARD else stage - 1, what, rank), 0.0))
            if kind != FORWARD:
                self.memory[rank] -= received

    def message(self, instruction: Instruction, ends: tuple[int, ...]) -> None:
        _, pipe, stage, microbatch, what, _ = instruction
        source, target = ends
        size = self.message_bytes.get((pipe, stage, what, target), 0.0)
        start = max(self.clock[source], self.link_free.get((source, target), 0.0))
        left = start + size / self.bandwidth
        arrived = left + self.latency
        consumer = (target, what, pipe, stage + 1 if what == ACTIVATION else stage, microbatch)
        self.arrivals[consumer] = max(arrived, self.arrivals.get(consumer, 0.0))
        if size:
            self.link_free[source, target] = left
            self.departures[source, instruction._replace(kind=FREE)] = left
            self.received[consumer] = self.received.get(consumer, 0.0) + size
            self._hold(target, size)
        if self.events is not None:
            asked = self.clock[target]
            receive = instruction._replace(kind=RECEIVE, peer=source)
            self._note(source, instruction, start, left)
            self._note(target, receive, asked, max(asked, arrived), max(0.0, arrived - asked))

    def free(self, instruction: Instruction, ranks: tuple[int, ...]) -> None:
        (rank,) = ranks
        if instruction.peer >= 0:
            left = self.departures.pop((rank, instruction), None)
            if left is not None:
                self.clock[rank] = max(self.clock[rank], left)
                self.memory[rank] -= self.message_bytes[
                    instruction.pipe, instruction.stage, instruction.what, instruction.peer
                ]
            return
        stage = instruction.stage
        self.activations[rank] -= 1
        self.memory[rank] -= self.stages[stage].activation_bytes
        if self.plan.stages[stage].recompute:
            self.inputs[rank] -= 1
            self.memory[rank] -= self._input_bytes(stage)

    def reduce(self, instruction: Instruction, ranks: tuple[int, ...]) -> None:
        start = max(max(self.clock[rank], self.reducing[rank]) for rank in ranks)
        end = start + self.stages[instruction.stage].reduce
        for rank in ranks:
            self.reducing[rank] = end
            self._note(rank, instruction, start, end, start - self.clock[rank])

    def step(self, instruction: Instruction, ranks: tuple[int, ...]) -> None:
        (rank,) = ranks
        start = max(self.clock[rank], self.reducing[rank])
        self._note(rank, instruction, start, start + self.step_time, start - self.clock[rank])
        self.clock[rank] = start + self.step_time

    def result(self) -> Simulation:
        return Simulation(
            makespan=max(self.clock),
            busy=tuple(self.busy),
            peak_activations=tuple(self.peak_activations),
            peak_inputs=tuple(self.peak_inputs),
            peak_memory=tuple(self.peak_memory),
            events=tuple(self.events or ()),
        )

    def _note(self, rank: int, instruction: Instruction, start: float, end: float, wait: float = 0.0) -> None:
        if self.events is not None:
            self.events.append(Event(rank, instruction, start, end, wait))

    def _hold(self, rank: int, size: float) -> None:
        self.memory[rank] += size
        self.peak_memory[rank] = max(self.peak_memory[rank], self.memory[rank])

    def _input_bytes(self, stage: int) -> float:
        shape = self.plan.stages[stage]
        return self.stages[stage].boundary_bytes / (shape.tile_count * shape.lanes)


def _durations(schedule: Schedule, stages: tuple[StageCosts, ...]) -> dict[tuple[str, int], float]:
    """(kind, stage) -> time; a backward of a stage that recomputes includes it."""
    table: dict[tuple[str, int], float] = {}
    for index, (stage, costs) in enumerate(zip(schedule.plan.stages, stages)):
        again = costs.recompute if stage.recompute else 0.0
        table[FORWARD, index] = costs.forward
        table[RECOMPUTE, index] = costs.recompute
        table[BACKWARD, index] = costs.backward + again
        table[BACKWARD_INPUT, index] = costs.backward - costs.weight + again
        table[BACKWARD_WEIGHT, index] = costs.weight
    return table


MessageSizes = dict[tuple[int, int, str, int], float]


def _message_bytes(schedule: Schedule, stages: tuple[StageCosts, ...]) -> tuple[MessageSizes, MessageSizes]:
    """(pipe, boundary, what, target) -> bytes of each message to it: its share of the boundary, in equal parts from all
    that send to it; and the same with the source -> bytes of all that it sends there."""
    layout, plan = schedule.layout, schedule.plan
    sizes: MessageSizes = {}
    outgoing: MessageSizes = {}
    for pipe in range(plan.pipes):
        for boundary in range(len(plan.stages) - 1):
            whole = stages[boundary + 1].boundary_bytes
            if not whole:
                continue
            for what, stage in ((ACTIVATION, plan.stages[boundary + 1]), (GRADIENT, plan.stages[boundary])):
                links = layout.links(pipe, boundary, what)
                targets = [link.target for link in links]
                for source, target in links:
                    size = whole / (stage.tile_count * stage.lanes) / targets.count(target)
                    sizes[pipe, boundary, what, target] = size
                    outgoing[pipe, boundary, what, source] = outgoing.get((pipe, boundary, what, source), 0.0) + size
    return sizes, outgoing


def _weights(schedule: Schedule, rank: int, stages: tuple[StageCosts, ...]) -> float:
    """A rank holds each stage (or shard of it) once, even if it plays it in both pipes."""
    held = {(role.stage, role.tensor) for role in schedule.layout.roles(rank)}
    return sum(stages[stage].weight_bytes for stage, _ in held)
