"""The rack: what the simulated devices of one machine show each other in files. `Rack` is how they agree on when things
happen; `ClockFile` is the state of one clock, which other processes see and can reset.

Each device writes into a file of its own, shared in memory, when it sends, starts a reduction, or is ready for what it
computes with its team; the others read it there once the real message has come, so what they look for has been written.

    slot of an instruction: [ step + 1 | seconds ]     two slots by turns, for a device may be one step ahead

Knows instructions and seconds; nothing of power.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path

_WORDS = 4
"""Of 8 bytes, per instruction: two slots of two words."""

_DEFAULT, _WIDTH = "default", 12
"""Every state of a clock is as long as every other, so that one write replaces it."""


class Rack:
    """One rank's view of all devices."""

    def __init__(self, directory: str | Path, rank: int, lengths: Sequence[int], patience: float = 300.0) -> None:
        """`lengths`: how many instructions each rank has. `patience`: seconds to wait for another device."""
        self.directory, self.rank, self.lengths, self.patience = Path(directory), rank, tuple(lengths), patience
        self._views: dict[int, memoryview[float]] = {}
        self.directory.mkdir(parents=True, exist_ok=True)
        new = self._path(rank).with_suffix(".new")
        with open(new, "w+b") as file:
            file.truncate(8 * _WORDS * max(1, self.lengths[rank]))
            self._views[rank] = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        new.replace(self._path(rank))

    def tell(self, step: int, index: int, seconds: float) -> None:
        """This rank's instruction number `index` of the step is due at `seconds`."""
        view, at = self._views[self.rank], _WORDS * index + 2 * (step % 2)
        view[at + 1] = seconds
        view[at] = step + 1  # last: who sees it may read the time

    def ask(self, rank: int, step: int, index: int) -> float:
        """When the other rank's instruction is due; waits for a device that has not come there yet."""
        at = _WORDS * index + 2 * (step % 2)
        end = time.monotonic() + self.patience
        while True:
            view = self._view(rank)
            if view is not None and view[at] == step + 1:
                return view[at + 1]
            if time.monotonic() > end:
                raise TimeoutError(
                    f"simulated device {self.rank} waited {self.patience:g} s in {self.directory} for device {rank}, "
                    f"instruction {index} of step {step}: simulated devices must share a directory of one machine"
                )
            time.sleep(0.0002)

    def _view(self, rank: int) -> memoryview[float] | None:
        if rank not in self._views:
            path, size = self._path(rank), 8 * _WORDS * max(1, self.lengths[rank])
            try:
                with open(path, "r+b") as file:
                    if os.fstat(file.fileno()).st_size != size:
                        return None  # of an earlier run
                    self._views[rank] = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
            except FileNotFoundError:
                return None
        return self._views[rank]

    def _path(self, rank: int) -> Path:
        return self.directory / f"device-{rank}.slots"


class ClockFile:
    """One simulated clock's state: MHz, or "default"."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: int | None = None

    def read(self) -> int | None:
        """MHz, or None for the device's own choice."""
        word = self.path.read_text(encoding="ascii").strip() if self.path.exists() else _DEFAULT
        return None if word == _DEFAULT else int(word)

    def write(self, frequency: int | None) -> None:
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        word = _DEFAULT if frequency is None else str(frequency)
        os.pwrite(self._file, f"{word.ljust(_WIDTH - 1)}\n".encode(), 0)
