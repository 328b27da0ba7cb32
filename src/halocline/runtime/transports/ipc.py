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
from typing import Any

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


class Slot:
    """`capacity` bytes that a sender fills and a receiver in another process empties: a file in memory, mapped by
    both."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.capacity = buffer.numel()

    @classmethod
    def make(cls, capacity: int, transport: Ipc) -> tuple[Slot, Any]:
        """A slot, and what another process opens it by, which can be pickled."""
        path = tempfile.mktemp(prefix="halocline_slot_", dir=transport.directory)
        return cls(_mapped(path, capacity)), (path, capacity)

    @classmethod
    def open(cls, announcement: Any) -> Slot:
        slot = cls(_mapped(*announcement))
        Path(announcement[0]).unlink()  # both have it now
        return slot

    def fill(self, message: Tensor) -> None:
        self.buffer[: message.numel()].copy_(message)

    def empty(self, message: Tensor) -> None:
        message.copy_(self.buffer[: message.numel()])


def _mapped(path: str, capacity: int) -> Tensor:
    return torch.from_file(path, shared=True, size=capacity, dtype=torch.uint8)


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
    def make(cls, capacity: int, transport: Ipc) -> tuple[Slot, Any]:
        device = transport.device
        buffer = torch.empty(capacity, dtype=torch.uint8, device=device)
        with torch.cuda.device(device):
            filled = torch.cuda.Event(interprocess=True)
            emptied = torch.cuda.Event(interprocess=True)
            # An event has a handle once it was recorded.
            filled.record(torch.cuda.current_stream(device))
            emptied.record(torch.cuda.current_stream(device))
            _, memory = reductions.reduce_tensor(buffer)
            handles = filled.ipc_handle(), emptied.ipc_handle()
        return cls(buffer, filled, emptied), (buffer.device.index, memory, *handles)

    @classmethod
    def open(cls, announcement: Any) -> Slot:
        index, memory, *handles = announcement
        device = torch.device("cuda", index)
        filled, emptied = (torch.cuda.Event.from_ipc_handle(device, handle) for handle in handles)
        return cls(reductions.rebuild_cuda_tensor(*memory), filled, emptied)

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
        super().__init__(rank, device)
        self.slot = CudaSlot if device.type == "cuda" else Slot
        self.directory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
        token = [secrets.token_hex(8) if rank == 0 else ""]
        dist.broadcast_object_list(token, 0)
        self._stem = f"halocline_{token[0]}"
        self._out: dict[int, _Outbox] = {}
        self._in: dict[int, _Inbox] = {}

    def mailbox(self, source: int, target: int) -> Path:
        return self.directory / f"{self._stem}_{source}_{target}"

    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        if peer not in self._out:
            self._out[peer] = _Outbox(self, peer)
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
        return self.slot.make(capacity, self)

    def close(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for inbox in self._in.values():
            inbox.close()
        self._in.clear()
        dist.barrier()  # nobody frees memory that another process still has open
        for outbox in self._out.values():
            outbox.close()
        self._out.clear()
        self._exchangers.clear()


class _Mailbox:
    """One direction of a pair: a file in shared memory through which one process tells another which slot holds the
    next message. The writer makes the file, the reader opens it and removes its name. No locks: each word is written by
    one side only, and the word that publishes something is written last, behind a fence.

    taken[slot]                the last message that the reader has taken out of a slot          (reader writes)
    record[n mod RECORDS]      number n, slot, bytes: message n lies in that slot                (writer writes)
    announced[slot]            how to open a slot: a pickled handle, written once                (writer writes)
    """

    def __init__(self, transport: Ipc, peer: int) -> None:
        self.transport, self.peer = transport, peer
        self.number = 0
        """Messages so far."""
        self.slots: dict[int, Slot] = {}
        self._words: Any = None
        """The file, once it is open."""

    def _open(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _SIZE)
        os.close(descriptor)
        self._words = memoryview(self._map).cast("Q")

    def close(self) -> None:
        self.slots.clear()
        if self._words is not None:
            self._words.release()
            self._map.close()


class _Outbox(_Mailbox):
    """This rank's messages to one peer."""

    def __init__(self, transport: Ipc, peer: int) -> None:
        super().__init__(transport, peer)
        self.last: list[int] = []
        """The last message that each slot was used for."""
        path = transport.mailbox(transport.rank, peer)
        part = path.with_suffix(".part")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(descriptor, _SIZE)
        os.rename(part, path)
        self._open(descriptor)

    def send(self, message: Tensor) -> None:
        size = message.numel()
        index = self._free(size)
        if index is None:
            index = self._new(size)
        self.number += 1
        self.last[index] = self.number
        self.slots[index].fill(message)
        at = _RECORD + 4 * (self.number % _RECORDS)
        self._words[at + 1], self._words[at + 2] = index, size
        _fence()
        self._words[at] = self.number

    def _free(self, size: int) -> int | None:
        """The smallest slot that is large enough and not in use."""
        taken = self._words[_TAKEN : _TAKEN + len(self.slots)]
        fit = [i for i, slot in self.slots.items() if slot.capacity >= size and taken[i] == self.last[i]]
        return min(fit, key=lambda index: self.slots[index].capacity, default=None)

    def _new(self, size: int) -> int:
        index = len(self.slots)
        if index == SLOTS:
            poll(lambda: self._free(size) is not None, _PATIENCE)
            found = self._free(size)
            assert found is not None
            return found
        self.slots[index], announcement = self.transport.make_slot(max(_SMALLEST, 1 << (size - 1).bit_length()))
        self.last.append(0)
        text = pickle.dumps(announcement)
        assert len(text) <= _ANNOUNCEMENT - 8, f"a slot's handle takes {len(text)} bytes"
        at = _ANNOUNCED + index * _ANNOUNCEMENT
        self._map[at + 8 : at + 8 + len(text)] = text
        _fence()
        self._words[at // 8] = len(text)
        return index


class _Inbox(_Mailbox):
    """One peer's messages to this rank, which makes the file with its first."""

    def take(self, number: int, message: Tensor, seconds: float) -> None:
        if self._words is None:
            path = self.transport.mailbox(self.peer, self.transport.rank)
            poll(path.exists, seconds)
            self._open(os.open(path, os.O_RDWR))
            os.unlink(path)
        words, at = self._words, _RECORD + 4 * (number % _RECORDS)
        poll(lambda: words[at] == number, seconds)
        index, size = words[at + 1], words[at + 2]
        if size != message.numel():
            raise RuntimeError(
                f"rank {self.peer} sent {size} bytes and rank {self.transport.rank} expects {message.numel()}"
            )
        if index not in self.slots:
            begin = _ANNOUNCED + index * _ANNOUNCEMENT
            announcement = pickle.loads(self._map[begin + 8 : begin + 8 + words[begin // 8]])
            self.slots[index] = self.transport.slot.open(announcement)
        self.slots[index].empty(message)
        _fence()
        words[_TAKEN + index] = number
