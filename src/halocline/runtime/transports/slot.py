"""A slot: memory that a sender fills and a receiver in another process empties, on a GPU (CUDA IPC) or on the host.

Knows one buffer and the order of its uses; a mailbox tells when to use it.

On a GPU nobody waits on the host: the sender's event says when the copy into the slot is done, the receiver's event
when the copy out of it is done, and each side makes its own stream wait for the other's event. An event is looked at
only after the mailbox has said that it was recorded, and recorded again only after the mailbox has said that it was
looked at.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing import reductions


class Announcement(NamedTuple):
    """What the other process needs to open a slot: picklable."""

    memory: Any
    filled: bytes = b""
    emptied: bytes = b""
    device: int = -1


class Slot:
    """`capacity` bytes. `fill` on the sender's side, `empty` on the receiver's."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.capacity = buffer.numel()

    def fill(self, message: Tensor) -> None:
        self.buffer[: message.numel()].copy_(message)

    def empty(self, message: Tensor) -> None:
        message.copy_(self.buffer[: message.numel()])


class HostSlot(Slot):
    """A file in memory, mapped by both."""

    @classmethod
    def make(cls, capacity: int, directory: Path) -> tuple[HostSlot, Announcement]:
        path = tempfile.mktemp(prefix="halocline_slot_", dir=directory)
        return cls.open_file(path, capacity), Announcement((path, capacity))

    @classmethod
    def open(cls, announcement: Announcement) -> HostSlot:
        path, capacity = announcement.memory
        slot = cls.open_file(path, capacity)
        Path(path).unlink()  # both have it now
        return slot

    @classmethod
    def open_file(cls, path: str, capacity: int) -> HostSlot:
        return cls(torch.from_file(path, shared=True, size=capacity, dtype=torch.uint8))


class CudaSlot(Slot):
    """GPU memory opened by both through CUDA IPC."""

    def __init__(self, buffer: Tensor, filled: torch.cuda.Event, emptied: torch.cuda.Event) -> None:
        super().__init__(buffer)
        self.filled, self.emptied = filled, emptied
        self._used = False

    @classmethod
    def make(cls, capacity: int, device: torch.device) -> tuple[CudaSlot, Announcement]:
        buffer = torch.empty(capacity, dtype=torch.uint8, device=device)
        with torch.cuda.device(device):
            filled = torch.cuda.Event(interprocess=True)
            emptied = torch.cuda.Event(interprocess=True)
            # An event has a handle once it was recorded.
            filled.record(torch.cuda.current_stream(device))
            emptied.record(torch.cuda.current_stream(device))
            _, memory = reductions.reduce_tensor(buffer)
            handles = filled.ipc_handle(), emptied.ipc_handle()
        return cls(buffer, filled, emptied), Announcement(memory, *handles, buffer.device.index)

    @classmethod
    def open(cls, announcement: Announcement) -> CudaSlot:
        device = torch.device("cuda", announcement.device)
        buffer = reductions.rebuild_cuda_tensor(*announcement.memory)
        filled = torch.cuda.Event.from_ipc_handle(device, announcement.filled)
        emptied = torch.cuda.Event.from_ipc_handle(device, announcement.emptied)
        return cls(buffer, filled, emptied)

    def fill(self, message: Tensor) -> None:
        stream = torch.cuda.current_stream(message.device)
        if self._used:
            stream.wait_event(self.emptied)
        self._used = True
        super().fill(message)
        self.filled.record(stream)

    def empty(self, message: Tensor) -> None:
        stream = torch.cuda.current_stream(message.device)
        stream.wait_event(self.filled)
        super().empty(message)
        self.emptied.record(stream)
