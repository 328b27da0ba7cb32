"""Ipc: messages through memory that the processes of one node share, on the GPU (CUDA IPC) or on the host.

Several ranks may use one GPU, which NCCL refuses. A send copies into a slot of the pair and is done; a receive copies
out of it when it is waited for. Slots are made as they are needed and used again when their message was taken, so no
send waits for its peer unless `mailbox.SLOTS` messages are already on the way to it.
"""

from __future__ import annotations

import secrets
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from halocline.runtime.transports.exchanger import TransportExchanger
from halocline.runtime.transports.mailbox import SLOTS, Mailbox, poll
from halocline.runtime.transports.slot import CudaSlot, HostSlot, Slot
from halocline.runtime.transports.transport import Handle, Transport
from halocline.tiling.exchanger import Exchanger

_SMALLEST = 1 << 16
"""Bytes of the smallest slot: small messages of different sizes share one."""


class Ipc(Transport):
    name = "ipc"

    def __init__(self, rank: int, device: torch.device, patience: float = 600.0) -> None:
        super().__init__(rank)
        self.device = device
        self.patience = patience
        """Seconds that a send may wait for a slot."""
        self.directory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
        token = [secrets.token_hex(8) if rank == 0 else ""]
        dist.broadcast_object_list(token, 0)
        self._stem = f"halocline_{token[0]}"
        self._out: dict[int, _Outbox] = {}
        self._in: dict[int, _Inbox] = {}
        self._exchangers: dict[Any, TransportExchanger] = {}

    def mailbox(self, source: int, target: int, seconds: float) -> Mailbox:
        path = self.directory / f"{self._stem}_{source}_{target}"
        return Mailbox(path, source == self.rank, seconds)

    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        if peer not in self._out:
            self._out[peer] = _Outbox(self.mailbox(self.rank, peer, self.patience), self)
        self._out[peer].send(message.view(-1).view(torch.uint8))
        return _DONE

    def receive(self, message: Tensor, peer: int, label: object = "") -> Handle:
        if peer not in self._in:
            self._in[peer] = _Inbox(self, peer)
        inbox = self._in[peer]
        inbox.number += 1
        return _Arrival(inbox, inbox.number, message.view(-1).view(torch.uint8))

    def exchanger(self, group: Any, deadline: float) -> Exchanger:
        if group not in self._exchangers:
            self._exchangers[group] = TransportExchanger(self, group, deadline)
        return self._exchangers[group]

    def make_slot(self, capacity: int) -> tuple[Slot, Any]:
        if self.device.type == "cuda":
            return CudaSlot.make(capacity, self.device)
        return HostSlot.make(capacity, self.directory)

    def open_slot(self, announcement: Any) -> Slot:
        return CudaSlot.open(announcement) if self.device.type == "cuda" else HostSlot.open(announcement)

    def close(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for inbox in self._in.values():
            inbox.close()
        self._in.clear()
        dist.barrier()  # nobody frees memory that another process still has open
        for outbox in self._out.values():
            outbox.box.close()
        self._out.clear()
        self._exchangers.clear()


class _Outbox:
    """This rank's messages to one peer."""

    def __init__(self, box: Mailbox, transport: Ipc) -> None:
        self.box, self.transport = box, transport
        self.number = 0
        self.slots: list[Slot] = []
        self.last: list[int] = []
        """The last message that each slot was used for."""

    def send(self, message: Tensor) -> None:
        index = self._free(message.numel())
        if index is None:
            index = self._new(message.numel())
        self.number += 1
        self.last[index] = self.number
        self.slots[index].fill(message)
        self.box.post(self.number, index, message.numel())

    def _free(self, size: int) -> int | None:
        """The smallest slot that is large enough and not in use."""
        best = None
        for index, slot in enumerate(self.slots):
            if slot.capacity >= size and self.box.taken(index) == self.last[index]:
                if best is None or slot.capacity < self.slots[best].capacity:
                    best = index
        return best

    def _new(self, size: int) -> int:
        if len(self.slots) == SLOTS:
            poll(lambda: self._free(size) is not None, self.transport.patience)
            found = self._free(size)
            assert found is not None
            return found
        slot, announcement = self.transport.make_slot(max(_SMALLEST, 1 << (size - 1).bit_length()))
        self.box.announce(len(self.slots), announcement)
        self.slots.append(slot)
        self.last.append(0)
        return len(self.slots) - 1


class _Inbox:
    """One peer's messages to this rank."""

    def __init__(self, transport: Ipc, peer: int) -> None:
        self.transport, self.peer = transport, peer
        self.number = 0
        self.box: Mailbox | None = None
        self.slots: dict[int, Slot] = {}

    def take(self, number: int, message: Tensor, seconds: float) -> None:
        if self.box is None:  # the peer makes it with its first message
            self.box = self.transport.mailbox(self.peer, self.transport.rank, seconds)
        box = self.box
        poll(lambda: box.arrived(number), seconds)
        index, size = box.record(number)
        if size != message.numel():
            raise RuntimeError(
                f"rank {self.peer} sent {size} bytes and rank {self.transport.rank} expects {message.numel()}"
            )
        if index not in self.slots:
            self.slots[index] = self.transport.open_slot(box.handle(index))
        self.slots[index].empty(message)
        box.take(number, index)

    def close(self) -> None:
        self.slots.clear()
        if self.box is not None:
            self.box.close()


class _Arrival:
    def __init__(self, inbox: _Inbox, number: int, message: Tensor) -> None:
        self.inbox, self.number, self.message = inbox, number, message

    def wait(self, timeout: timedelta) -> None:
        self.inbox.take(self.number, self.message, timeout.total_seconds())


class _Done:
    """A send is done when it returns: its slot has a copy."""

    def wait(self, timeout: timedelta) -> None:
        return None


_DONE = _Done()
