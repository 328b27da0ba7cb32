"""Messages under way in a step: what this rank has sent and not let go, and what it has asked for and not got.

Messages start where the schedule says, and whoever needs one waits for it. Knows instructions and what they carry;
nothing of layers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from halocline.plan.layout import GRADIENT, Layout
from halocline.runtime.boundary.message import Messages, StageMessage
from halocline.runtime.processes.world import World
from halocline.schedule.events import Events
from halocline.schedule.instruction import SEND, Instruction

TRAVELLING = 4
"""Sent buffers that may live past their free: a message leaves only when its receiver, who may be busy, asks for it,
and standing idle until then would cost more than the buffer."""


class InFlight:
    """One rank's, of one step whose microbatches have so many `samples`."""

    def __init__(
        self, world: World, layout: Layout, messages: Messages, events: Events, samples: Sequence[int]
    ) -> None:
        self._world, self._messages, self._events, self._samples = world, messages, events, samples
        self._first = world.rank - world.rank % layout.ranks_per_replica
        """This replica's first rank."""
        self._arriving: dict[tuple[Any, ...], list[tuple[Instruction, Tensor | None, Any]]] = {}
        self._sent: dict[Instruction, tuple[Tensor, Any]] = {}
        self._leaving: deque[Instruction] = deque()
        """Sends whose buffers were freed and may still travel."""

    @property
    def sent(self) -> list[Tensor]:
        return [message for message, _ in self._sent.values()]

    def send(self, instruction: Instruction, tensors: Callable[[], Sequence[Tensor]]) -> None:
        """Pack each peer's boxes and start the message."""
        carried = self._carried(instruction)
        if carried.parts:
            message = carried.pack(tensors())
            handle = self._world.send(message, self._first + instruction.peer, instruction[1:5])
            self._sent[instruction] = message, handle

    def receive(self, instruction: Instruction) -> None:
        carried = self._carried(instruction)
        message, handle = None, None
        if carried.parts:
            message, handle = self._world.receive(carried.size, self._first + instruction.peer, instruction[1:5])
        self._arriving.setdefault(instruction[1:5], []).append((instruction, message, handle))

    def arrived(self, asked: tuple[int, int, int, str], now: Instruction | None) -> list[tuple[StageMessage, Tensor]]:
        """The messages that were asked for of a (pipe, stage, microbatch, what), once they are there. `now` is the
        instruction under way."""
        found = []
        for receive, message, handle in self._arriving.pop(asked, []):
            self._events.wait(receive)
            if message is not None:
                peer = self._first + receive.peer
                self._world.wait(handle, f"{self._waits(now)} for {_name(receive)} from rank {peer}", peer)
                found.append((self._carried(receive), message))
            self._events.ready(receive)
        return found

    def free(self, free: Instruction, now: Instruction | None) -> None:
        """Let a sent buffer go; a few may still travel."""
        send = free._replace(kind=SEND)
        if send in self._sent:
            self._leaving.append(send)
            if len(self._leaving) > TRAVELLING:
                self._let_go(self._leaving.popleft(), now)

    def settle(self, now: Instruction | None) -> None:
        """Wait until all buffers that were freed have left."""
        while self._leaving:
            self._let_go(self._leaving.popleft(), now)

    def _let_go(self, send: Instruction, now: Instruction | None) -> None:
        peer = self._first + send.peer
        self._world.wait(self._sent[send][1], f"{self._waits(now)} for rank {peer} to take {_name(send)}", peer)
        del self._sent[send]

    def _carried(self, instruction: Instruction) -> StageMessage:
        _, pipe, stage, microbatch, what, peer = instruction
        return self._messages(pipe, stage, self._samples[microbatch], what, peer)

    def _waits(self, now: Instruction | None) -> str:
        return f"rank {self._world.rank} waits in {now}"


def assembled(arrived: Sequence[tuple[StageMessage, Tensor]], what: str, room: Callable[[], list[Tensor]]) -> list[Any]:
    """The tensors that messages brought. One that brought everything is used as it came; else they are put together in
    `room` (gradients from several ranks add up)."""
    if len(arrived) == 1 and arrived[0][0].whole:
        return arrived[0][0].views(arrived[0][1])
    tensors = room()
    for carried, message in arrived:
        carried.unpack(message, tensors, add=what == GRADIENT)
    return tensors


def _name(instruction: Instruction) -> str:
    return f"{instruction.what} p{instruction.pipe} s{instruction.stage} m{instruction.microbatch}"
