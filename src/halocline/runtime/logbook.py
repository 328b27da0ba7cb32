"""The logbook: a small file in which each rank keeps what it is doing, for whoever asks after the rank is gone.

The file is mapped into memory, so noting an instruction is one store and no system call, and a killed process leaves
its last note behind.

    word 0   length of the text          word 1   the step          word 2   the instruction, counted from 1 (0: none)
    text     JSON: rank, pid, role, the instructions' names, and the error if there was one
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halocline.runtime.lost import Loss

_TEXT = 24
_NAME = "rank{}.log"


class Logbook:
    """One rank's notes, or nobody's: without a directory nothing is written."""

    def __init__(self, directory: Path | None, rank: int, pid: int) -> None:
        self.path = directory / _NAME.format(rank) if directory is not None else None
        self._said: dict[str, Any] = {"rank": rank, "pid": pid, "role": "", "instructions": []}
        self._map: mmap.mmap | None = None
        self._words: Any = [0, 0, 0]  # a list takes notes as well as a mapped file
        self._write()

    def begin(self, role: str, instructions: Sequence[object]) -> None:
        """Say once what the rank is and which instructions it will run."""
        self._said["role"], self._said["instructions"] = role, [str(i) for i in instructions]
        self._write()

    @property
    def role(self) -> str:
        return self._said["role"]

    def note(self, step: int, instruction: int) -> None:
        """The rank begins an instruction (its index + 1), or none (0)."""
        self._words[1], self._words[2] = step, instruction

    @property
    def words(self) -> Any:
        """Where the notes go, for a loop that writes `words[2]` itself."""
        return self._words

    def fail(self, reason: str, own: bool = True) -> None:
        """The rank stops: by its `own` error, or because another one did."""
        self._said["error"], self._said["own"] = reason, own
        self._write()

    def loss(self, reason: str) -> Loss:
        """This rank's own end, as the others will hear of it."""
        return _loss(self._said, self._words, reason)

    def neighbour(self, rank: int) -> Loss | None:
        """What another rank's logbook in the same directory says."""
        found = read(self.path.parent, rank) if self.path is not None else None
        return found[0] if found is not None else None

    def _write(self) -> None:
        if self.path is None:
            return
        text = json.dumps(self._said).encode()
        step, instruction = self._words[1], self._words[2]
        if self._map is None or len(self._map) < _TEXT + len(text):
            with open(self.path, "w+b") as file:
                file.truncate(_TEXT + 2 * len(text) + 4096)
                self._map = mmap.mmap(file.fileno(), 0)
            self._words = memoryview(self._map)[:_TEXT].cast("q")
        self._map[_TEXT : _TEXT + len(text)] = text
        self._words[0], self._words[1], self._words[2] = len(text), step, instruction


def read(directory: Path, rank: int) -> tuple[Loss, bool | None, int] | None:
    """What a rank's logbook says: where it was and why it stopped, whether by its own error (None if it noted no
    error), and its process; None without a readable logbook."""
    try:
        data = (directory / _NAME.format(rank)).read_bytes()
        words = memoryview(data)[:_TEXT].cast("q")
        said = json.loads(data[_TEXT : _TEXT + words[0]])
    except (OSError, ValueError, TypeError):
        return None
    return _loss(said, words, said.get("error", "died")), said.get("own"), said["pid"]


def note_failure(directory: Path, rank: int, reason: str) -> None:
    """Write into a rank's logbook why it stopped, unless it did so itself."""
    path = directory / _NAME.format(rank)
    data = path.read_bytes() if path.exists() else bytes(_TEXT)
    length = memoryview(data)[:_TEXT].cast("q")[0]
    said = (
        json.loads(data[_TEXT : _TEXT + length]) if length else {"rank": rank, "pid": 0, "role": "", "instructions": []}
    )
    if "error" not in said:
        text = json.dumps({**said, "error": reason, "own": True}).encode()
        path.write_bytes(len(text).to_bytes(8, sys.byteorder) + data[8:_TEXT] + text)


def _loss(said: dict[str, Any], words: Any, reason: str) -> Loss:
    index = words[2]
    names = said["instructions"]
    inside = 0 < index <= len(names)
    return Loss(said["rank"], said["role"], names[index - 1] if inside else "", words[1] if inside else -1, reason)
