"""The instruction set: what one rank may be told to do, one entry at a time, and the schedule made of such entries.

Every reader of a schedule (checker, simulator, executor, timeline, energy) reads these and nothing else.

| instruction                     | the rank ...                                                                 |
|---------------------------------|------------------------------------------------------------------------------|
| forward, recompute, backward    | computes with its team; waits for what it received first                     |
| backward-input, backward-weight | the two halves of a backward, where a schedule separates them                |
| send, receive                   | starts a message; neither waits here, the consumer of a received tensor does |
| free                            | drops a stage's tensors of one microbatch, or a sent buffer (after waiting)  |
| reduce                          | starts summing a stage's gradients over all ranks that share its parameters  |
| step                            | waits for the reductions and updates its parameters                          |

A message belongs to the boundary below its `stage`: the activation that stage s hands to s + 1, or the gradient it gets
back. Both ends name it alike. A backward includes the recomputation of a stage that keeps only its input, unless a
recompute of the same microbatch stands before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan

FORWARD = "forward"
BACKWARD = "backward"
BACKWARD_INPUT = "backward-input"
BACKWARD_WEIGHT = "backward-weight"
RECOMPUTE = "recompute"
SEND = "send"
RECEIVE = "receive"
FREE = "free"
REDUCE = "reduce"
STEP = "step"

COMPUTE = frozenset({FORWARD, RECOMPUTE, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT})
"""Kinds that a whole team executes together: their halos, statistics and tensor shards meet."""


class Instruction(NamedTuple):
    """One entry of a rank's schedule."""

    kind: str
    pipe: int = 0
    stage: int = 0
    microbatch: int = -1
    what: str = ""
    """activation or gradient, for messages and sent buffers."""
    peer: int = -1
    """The other end of a message, a rank of the same replica."""

    def __str__(self) -> str:
        if self.kind == STEP:
            return STEP
        if self.kind == REDUCE:
            return f"{REDUCE} s{self.stage}"
        what = f" {self.what}" if self.what else ""
        arrow = "" if self.peer < 0 else f" {'<-' if self.kind == RECEIVE else '->'} {self.peer}"
        return f"{self.kind}{what} p{self.pipe} s{self.stage} m{self.microbatch}{arrow}"


def forwards_ahead(instructions: Iterable[Instruction]) -> set[int]:
    """The stages that run a forward while another microbatch still waits for its backward."""
    held: dict[int, set[tuple[int, int]]] = {}
    found = set()
    for kind, pipe, stage, microbatch, _, peer in instructions:
        if kind == FORWARD:
            found |= {stage} if held.get(stage) else set()
            held.setdefault(stage, set()).add((pipe, microbatch))
        elif kind == FREE and peer < 0:
            held[stage].discard((pipe, microbatch))
    return found


Orders = list[list[Instruction]]
"""What a generator makes: for each rank of a replica, its compute instructions in order, before messages are added."""


class Schedule(NamedTuple):
    """A list of instructions for every rank of a replica. All replicas run the same lists."""

    plan: Plan
    layout: Layout
    ranks: tuple[tuple[Instruction, ...], ...]

    @property
    def instruction_count(self) -> int:
        """Instructions of all ranks of all replicas."""
        return self.plan.replicas * sum(map(len, self.ranks))
