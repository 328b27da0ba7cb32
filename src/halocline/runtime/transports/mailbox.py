"""A mailbox: one file in shared memory through which one process tells another which slot holds the next message.

Knows numbers and bytes; nothing of tensors or GPUs. One writer, one reader, no locks: each word is written by one side
only, and the word that publishes something is written last, behind a fence.

    taken[slot]                the last message that the reader has taken out of a slot          (reader writes)
    record[n mod RECORDS]      number n, slot, bytes: message n lies in that slot                (writer writes)
    announced[slot]            how to open a slot: a pickled handle, written once                (writer writes)
"""

from __future__ import annotations

import mmap
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SLOTS = 128
"""Messages that may be on their way at once between two ranks; the sender of one more waits for its peer."""
_RECORDS = 2 * SLOTS
_ANNOUNCEMENT = 2048
_TAKEN, _RECORD = 0, SLOTS
_ANNOUNCED = (_RECORD + 4 * _RECORDS) * 8
_SIZE = _ANNOUNCED + SLOTS * _ANNOUNCEMENT


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
    """One direction of a pair. The writer makes the file, the reader opens it and removes its name."""

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
