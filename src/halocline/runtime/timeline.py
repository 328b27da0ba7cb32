"""The timeline of a rank at work: an observer that writes down when each instruction began and ended, as it goes."""

from __future__ import annotations

import time
from pathlib import Path

from halocline.plan.plan import Plan
from halocline.runtime.measured import file_name, header, line
from halocline.schedule.events import Mark, Marks, Observer
from halocline.schedule.instruction import COMPUTE, FREE, RECEIVE, REDUCE, STEP, Instruction
from halocline.simulation.simulator import Event

_OFTEN = 1.0
"""Seconds after which what is known is written, even inside a step."""
_ON = (RECEIVE, REDUCE)
"""What goes on after its end, until it is ready."""


class Recorder(Observer):
    """One rank's file. Rows are kept as marks and written when a step ends, or every second in a long one."""

    def __init__(self, directory: str | Path, rank: int, plan: Plan, marks: Marks) -> None:
        self.rank, self._step = rank, 0
        self.marks: Marks = marks
        self._rows: list[tuple[int, Instruction, Mark, Mark, tuple[Mark, Mark] | None]] = []
        self._begun: dict[Instruction, Mark] = {}
        self._waits: dict[Instruction, Mark] = {}
        self._idle: dict[Instruction, tuple[Mark, Mark]] = {}
        """Instructions under way -> since when, since when they wait, and from when to when they did."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._file = open(Path(directory) / file_name(rank), "w", encoding="utf-8")
        self._base = marks.seconds(marks.mark())
        self._written = time.monotonic()
        self._file.write(header(plan, rank, self._base))
        self._file.flush()

    def step_begins(self, step: int, mark: Mark) -> None:
        self._step = step

    def begin(self, instruction: Instruction, mark: Mark) -> None:
        self._begun[instruction] = mark

    def wait(self, instruction: Instruction, mark: Mark) -> None:
        self._waits[instruction] = mark

    def ready(self, instruction: Instruction, mark: Mark) -> None:
        idle = self._idle[instruction] = self._waits.pop(instruction), mark
        if instruction.kind in _ON:
            self._add(instruction, mark, idle if instruction.kind == RECEIVE else None)

    def end(self, instruction: Instruction, mark: Mark) -> None:
        if instruction.kind in _ON:
            return
        if instruction.kind == FREE and instruction.peer < 0:
            del self._begun[instruction]  # dropping a microbatch takes no time
            return
        self._add(instruction, mark, self._idle.get(instruction))
        if time.monotonic() - self._written > _OFTEN and self.marks.happened(mark):
            self.flush()  # a run that is killed leaves what it did

    def step_ends(self, step: int, mark: Mark) -> None:
        self.flush()

    def flush(self) -> None:
        rows, self._rows = self._rows, []
        text = []
        for step, instruction, start, end, idle in rows:
            begin, stop = self._seconds(start), self._seconds(end)
            wait = self._seconds(idle[1]) - self._seconds(idle[0]) if idle is not None else 0.0
            if instruction.kind in COMPUTE or instruction.kind == STEP:
                begin += wait  # what it waited for is told apart from what it computed
            text.append(line(Event(self.rank, instruction, begin, stop, wait), step))
        self._file.write("".join(text))
        self._file.flush()
        self._written = time.monotonic()

    def close(self) -> None:
        self.flush()
        self._file.close()

    def _add(self, instruction: Instruction, end: Mark, idle: tuple[Mark, Mark] | None) -> None:
        self._rows.append((self._step, instruction, self._begun.pop(instruction), end, idle))
        self._idle.pop(instruction, None)

    def _seconds(self, mark: Mark) -> float:
        return self.marks.seconds(mark) - self._base
