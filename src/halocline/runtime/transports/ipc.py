"""Ipc: messages through memory that the processes of one node share, on the GPU (CUDA IPC) or on the host.

Several ranks may use one GPU, which NCCL refuses. A send copies into a slot of the pair and is done; a receive copies
out of it when it is waited for. A mailbox says which slot holds which message. Slots are made as they are needed and
used again when their message was taken, so no send waits for its peer unless `SLOTS` messages are already on the way.
"""

from __future__ import annotations

import mmap
import os
import pickle
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import reductions

from halocline.runtime.transports.transport import Handle, Later, Transport

SLOTS = 128
"""Messages that may be on their way at once between two ranks; the sender of one more waits for its peer."""
_RECORDS = 2 * SLOTS
_ANNOUNCEMENT = 2048
_TAKEN, _RECORD = 0, SLOTS
_ANNOUNCED = (_RECORD + 4 * _RECORDS) * 8
_SIZE = _ANNOUNCED + SLOTS * _ANNOUNCEMENT
_PATIENCE = 600.0
"""Seconds that a send may wait for a slot."""
_SMALLEST = 1 << 16
"""Bytes of the smallest slot: small messages of different sizes share one."""


def poll(ready: Callable[[], bool], seconds: float) -> None:
    """Return when `ready()` holds: at first by looking again and again, then less and less often."""
    end = time.monotonic() + seconds
    looks = 0
    while not ready():
        looks += 1
        if looks > 200:
            time.sleep(min(1e-3, 1e-6 * looks))
            if time.monotonic() > end:
                raise RuntimeError(f"timed out: nothing came for {seconds:g} s")


_LOCK = threading.Lock()


def _fence() -> None:
    """Keep what was written before it before what is written after it: taking a lock twice is such a barrier."""
    with _LOCK:
        pass
    with _LOCK:
        pass


class Mailbox:
    """One direction of a pair: a file in shared memory through which one process tells another which slot holds the
    next message. The writer makes the file, the reader opens it and removes its name. No locks: each word is written by
    one side only, and the word that publishes something is written last, behind a fence.

    taken[slot]                the last message that the reader has taken out of a slot          (reader writes)
    record[n mod RECORDS]      number n, slot, bytes: message n lies in that slot                (writer writes)
    announced[slot]            how to open a slot: a pickled handle, written once                (writer writes)
    """

    def __init__(self, path: Path, write: bool, seconds: float) -> None:
        if write:
            part = path.with_suffix(".part")
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(descriptor, _SIZE)
            os.rename(part, path)
        else:
            poll(path.exists, seconds)
            descriptor = os.open(path, os.O_RDWR)
            os.unlink(path)
        self._map = mmap.mmap(descriptor, _SIZE)
        os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")

    # -- the writer's side ---------------------------------------------------------------------------------------

    def announce(self, slot: int, handle: Any) -> None:
        """Say once how a slot is opened."""
        text = pickle.dumps(handle)
        assert len(text) <= _ANNOUNCEMENT - 8, f"a slot's handle takes {len(text)} bytes"
        at = _ANNOUNCED + slot * _ANNOUNCEMENT
        self._map[at + 8 : at + 8 + len(text)] = text
        _fence()
        self._words[at // 8] = len(text)

    def post(self, number: int, slot: int, size: int) -> None:
        """Publish message `number`."""
        at = _RECORD + 4 * (number % _RECORDS)
        self._words[at + 1], self._words[at + 2] = slot, size
        _fence()
        self._words[at] = number

    def taken(self, slot: int) -> int:
        """The last message that the reader has taken out of a slot."""
        return self._words[_TAKEN + slot]

    # -- the reader's side ---------------------------------------------------------------------------------------

    def arrived(self, number: int) -> bool:
        return self._words[_RECORD + 4 * (number % _RECORDS)] == number

    def record(self, number: int) -> tuple[int, int]:
        """Slot and size of a message that has arrived."""
        at = _RECORD + 4 * (number % _RECORDS)
        return self._words[at + 1], self._words[at + 2]

    def handle(self, slot: int) -> Any:
        at = _ANNOUNCED + slot * _ANNOUNCEMENT
        length = self._words[at // 8]
        return pickle.loads(self._map[at + 8 : at + 8 + length])

    def take(self, number: int, slot: int) -> None:
        """Give a slot back to the writer."""
        _fence()
        self._words[_TAKEN + slot] = number

    def close(self) -> None:
        self._words.release()
        self._map.close()


class Announcement(NamedTuple):
    """What the other process needs to open a slot: picklable."""

    memory: Any
    filled: bytes = b""
    emptied: bytes = b""
    device: int = -1


class Slot:
    """`capacity` bytes that a sender fills and a receiver in another process empties."""

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
    """GPU memory opened by both through CUDA IPC.

    Nobody waits on the host: the sender's event says when the copy into the slot is done, the receiver's event when the
    copy out of it is done, and each side makes its own stream wait for the other's event. An event is looked at only
    after the mailbox has said that it was recorded, and recorded again only after it was looked at.
    """

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


class Ipc(Transport):
    name = "ipc"
    carries_tiles = True

    def __init__(self, rank: int, device: torch.device) -> None:
        super().__init__(rank)
        self.device = device
        self.directory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
        token = [secrets.token_hex(8) if rank == 0 else ""]
        dist.broadcast_object_list(token, 0)
        self._stem = f"halocline_{token[0]}"
        self._out: dict[int, _Outbox] = {}
        self._in: dict[int, _Inbox] = {}

    def mailbox(self, source: int, target: int, seconds: float) -> Mailbox:
        path = self.directory / f"{self._stem}_{source}_{target}"
        return Mailbox(path, source == self.rank, seconds)

    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        if peer not in self._out:
            self._out[peer] = _Outbox(self.mailbox(self.rank, peer, _PATIENCE), self)
        self._out[peer].send(message.view(-1).view(torch.uint8))
        return Later(lambda timeout: None)  # done: its slot has a copy

    def receive(self, message: Tensor, peer: int, label: object = "") -> Handle:
        if peer not in self._in:
            self._in[peer] = _Inbox(self, peer)
        inbox = self._in[peer]
        inbox.number += 1
        number, flat = inbox.number, message.view(-1).view(torch.uint8)
        return Later(lambda timeout: inbox.take(number, flat, timeout.total_seconds()))

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
            poll(lambda: self._free(size) is not None, _PATIENCE)
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
