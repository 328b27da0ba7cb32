"""The logbook: a small file in which each rank keeps what it is doing, for whoever asks after the rank is gone.

The file is mapped into memory, so noting an instruction is one store and no system call, and a killed process leaves
its last note behind.

    word 0   length of the text          word 1   the step          word 2   the instruction, counted from 1 (0: none)
    word 3   the rank that is waited for, counted from 1 (0: none)
    text     JSON: rank, pid, role, the instructions' names, and how it ended if it could say so
"""

from __future__ import annotations

import contextlib
import json
import mmap
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from halocline.runtime.processes.lost import LostRank
from halocline.schedule.events import Mark, Observer
from halocline.schedule.instruction import Instruction

_TEXT = 32
_NAME = "rank{}.log"

OWN, PEER, TOLD = "own", "peer", "told"
"""Why a rank ends: by its own error, for want of another rank's message, or because it was told of a loss."""


class Logbook(Observer):
    """One rank's notes, or nobody's: without a directory nothing is written."""

    def __init__(self, directory: Path | None, rank: int, pid: int, keep: bool = True) -> None:
        self.keep = keep
        """Whether the file stays when all went well."""
        self.path = directory / _NAME.format(rank) if directory is not None else None
        self._said: dict[str, Any] = {"rank": rank, "pid": pid, "role": "", "instructions": []}
        self._map: mmap.mmap | None = None
        self._words: Any = [0, 0, 0, 0]  # a list takes notes as well as a mapped file
        self._numbers: dict[Instruction, int] = {}
        self._write()

    def introduce(self, role: str, instructions: Sequence[Instruction]) -> None:
        """Say once what the rank is and which instructions it will run."""
        self._said["role"], self._said["instructions"] = role, [str(i) for i in instructions]
        self._numbers = {instruction: number for number, instruction in enumerate(instructions, 1)}
        self._write()

    def step_begins(self, step: int, mark: Mark) -> None:
        self._words[1] = step

    def begin(self, instruction: Instruction, mark: Mark) -> None:
        self._words[2] = self._numbers.get(instruction, 0)  # of another engine on this rank: none that is known

    def step_ends(self, step: int, mark: Mark) -> None:
        self._words[2] = 0

    def waits_for(self, rank: int | None) -> None:
        self._words[3] = 0 if rank is None else rank + 1

    def fail(self, why: str, detail: str) -> None:
        """The rank ends; `why` is one of own, peer and told."""
        self._said["why"], self._said["detail"] = why, detail
        self._write()

    @property
    def failed(self) -> bool:
        return "why" in self._said

    def loss(self, reason: str, detail: str = "") -> LostRank:
        """This rank's own end, as the others will hear of it."""
        return _loss(self._said, self._words, reason, detail)

    def remove(self) -> None:
        """All went well: delete the file, and the directory if it was the last, unless they are to be kept."""
        if self.path is not None and not self.keep:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()

    def neighbour(self, rank: int) -> LostRank | None:
        """What another rank's logbook in the same directory says."""
        return read(self.path.parent, rank)[0] if self.path is not None else None

    def waited_for(self, rank: int) -> str:
        """What the rank that one waits for is doing, and whom it waits for in turn, as far as logbooks tell."""
        told, seen = "", {-1}
        while rank not in seen and (other := self.neighbour(rank)) is not None:
            seen.add(rank)
            waits = f" and waits for rank {other.waits_for}" if other.waits_for >= 0 else ""
            told += f"; {replace(other, reason='is', detail='')}{waits}"
            rank = other.waits_for
        return told

    def _write(self) -> None:
        if self.path is None:
            return
        text = json.dumps(self._said).encode()
        notes = list(self._words[1:4])
        if self._map is None or len(self._map) < _TEXT + len(text):
            with open(self.path, "w+b") as file:
                file.truncate(_TEXT + 2 * len(text) + 4096)
                self._map = mmap.mmap(file.fileno(), 0)
            self._words = memoryview(self._map)[:_TEXT].cast("q")
        self._map[_TEXT : _TEXT + len(text)] = text
        self._words[0] = len(text)
        for number, note in enumerate(notes, 1):
            self._words[number] = note


def read(directory: Path, rank: int) -> tuple[LostRank | None, str]:
    """Where a rank was and how it ended, and why it did (empty if it could not say); None without a logbook."""
    try:
        data = (directory / _NAME.format(rank)).read_bytes()
        words = memoryview(data)[:_TEXT].cast("q")
        said = json.loads(data[_TEXT : _TEXT + words[0]])
    except (OSError, ValueError, TypeError):
        return None, ""
    why = said.get("why", "")
    return _loss(said, words, "failed" if why else "died", said.get("detail", "")), why


def note_failure(directory: Path, rank: int, detail: str) -> None:
    """Write into a rank's logbook how it ended, unless it did so itself."""
    path = directory / _NAME.format(rank)
    data = path.read_bytes() if path.exists() else bytes(_TEXT)
    length = memoryview(data)[:_TEXT].cast("q")[0]
    said = json.loads(data[_TEXT : _TEXT + length] or '{"role": "", "instructions": []}')
    if "why" not in said:
        text = json.dumps({**said, "rank": rank, "why": OWN, "detail": detail}).encode()
        path.write_bytes(len(text).to_bytes(8, sys.byteorder) + data[8:_TEXT] + text)


def _loss(said: dict[str, Any], words: Any, reason: str, detail: str) -> LostRank:
    index = words[2]
    names = said["instructions"]
    inside = 0 < index <= len(names)
    instruction, step = (names[index - 1], words[1]) if inside else ("", -1)
    return LostRank(said["rank"], said["role"], instruction, step, reason, detail, words[3] - 1)
