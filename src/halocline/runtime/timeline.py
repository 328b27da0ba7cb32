"""The timeline of a rank at work: an executor that notes when each instruction began and ended, and the recorder that
writes it down as it goes. It changes nothing of what the executor does, and costs nothing where it is not asked for.

On a GPU times are CUDA events on the compute stream, read when they have happened; elsewhere the process's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halocline.plan.plan import Plan
from halocline.runtime.executor import Executor
from halocline.runtime.parallel.reduction import Reduction
from halocline.runtime.step_work import StepWork
from halocline.schedule.instruction import COMPUTE, FREE, RECEIVE, REDUCE, SEND, STEP, Instruction
from halocline.simulation.measured import file_name, header, line
from halocline.simulation.simulator import Event

Mark = Any
"""A moment: seconds of the process's clock, or a CUDA event."""
_OFTEN = 1.0
"""Seconds after which what is known is written, even inside a step."""


class Recorder:
    """One rank's file. Rows are kept as marks and written when a step ends, or every second in a long one."""

    def __init__(self, directory: str | Path, rank: int, plan: Plan, device: torch.device) -> None:
        self.rank, self.step = rank, 0
        self._rows: list[tuple[int, Instruction, Mark, Mark, tuple[Mark, Mark] | None]] = []
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._file = open(Path(directory) / file_name(rank), "w", encoding="utf-8")
        self._cuda = device.type == "cuda"
        self._base: Mark = self.mark()
        if self._cuda:
            self._base.synchronize()
        self._since = 0.0
        """The base's time in the file: moved along with it, for CUDA counts in 32 bits."""
        self._written = time.perf_counter()
        self._file.write(header(plan, rank, time.time()))
        self._file.flush()

    def mark(self) -> Mark:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, instruction: Instruction, start: Mark, end: Mark, waited: tuple[Mark, Mark] | None = None) -> None:
        """An instruction was done from `start` to `end`, and stood idle in between for `waited`."""
        self._rows.append((self.step, instruction, start, end, waited))

    def pause(self) -> None:
        """Between two instructions: write if it has been long, so that a killed run leaves what it did."""
        if time.perf_counter() - self._written > _OFTEN and (not self._cuda or self.mark().query()):
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        latest = self.mark()
        if self._cuda:
            latest.synchronize()
        text = []
        for step, instruction, start, end, waited in rows:
            begin, stop = self._seconds(start), self._seconds(end)
            wait = self._seconds(waited[1]) - self._seconds(waited[0]) if waited is not None else 0.0
            if instruction.kind in COMPUTE or instruction.kind == STEP:
                begin += wait  # what it waited for is told apart from what it computed
            text.append(line(Event(self.rank, instruction, begin, stop, wait), step))
        self._file.write("".join(text))
        self._file.flush()
        if self._cuda:
            self._since, self._base = self._seconds(latest), latest
        self._written = time.perf_counter()

    def close(self) -> None:
        """Nothing more is to come."""
        self.flush()
        self._file.close()

    def _seconds(self, mark: Mark) -> float:
        if not self._cuda:
            return mark - self._base
        return self._since + self._base.elapsed_time(mark) / 1e3


class TimedExecutor(Executor):
    """An executor that tells a recorder of every instruction, with waits for messages apart from computation."""

    recorder: Recorder

    def record(self, recorder: Recorder) -> TimedExecutor:
        self.recorder = recorder
        self._asked: dict[tuple[Any, ...], Mark] = {}
        """Messages that were asked for and not yet taken -> since when."""
        self._idle: tuple[Mark, Mark] | None = None
        """The wait inside the instruction under way."""
        self._watched: list[Any] = []
        """Futures that are done when the end of a reduction has been noted."""
        self._unwatched: list[Callable[[Any], None]] = []
        own = {SEND: self._timed, RECEIVE: self._timed_receive, FREE: self._timed_free, REDUCE: self._timed_reduce}
        self._handlers = {kind: own.get(kind, self._timed)(handler) for kind, handler in self._handlers.items()}
        return self

    def run(self, work: StepWork, finish: Callable[[], None]) -> None:
        self.recorder.step = work.number
        try:
            super().run(work, finish)
        finally:
            self.recorder.flush()

    def _timed(self, handler: Callable[[Instruction], None]) -> Callable[[Instruction], None]:
        recorder = self.recorder

        def timed(instruction: Instruction) -> None:
            start, self._idle = recorder.mark(), None
            handler(instruction)
            recorder.add(instruction, start, recorder.mark(), self._idle)
            recorder.pause()

        return timed

    def _timed_receive(self, handler: Callable[[Instruction], None]) -> Callable[[Instruction], None]:
        def timed(instruction: Instruction) -> None:
            self._asked[instruction[1:]] = self.recorder.mark()
            handler(instruction)

        return timed

    def _timed_free(self, handler: Callable[[Instruction], None]) -> Callable[[Instruction], None]:
        """Dropping a microbatch takes no time; waiting for a sent buffer may."""
        timed = self._timed(handler)
        return lambda instruction: handler(instruction) if instruction.peer < 0 else timed(instruction)

    def _timed_reduce(self, handler: Callable[[Instruction], None]) -> Callable[[Instruction], None]:
        def timed(instruction: Instruction) -> None:
            start = self.recorder.mark()
            handler(instruction)
            self._watch(instruction, start, self.reductions[-1])

        return timed

    def _watch(self, instruction: Instruction, start: Mark, reduction: Reduction) -> None:
        """Note when a reduction has ended, which happens beside whatever this rank computes meanwhile."""
        left = len(reduction.handles)
        if not left:  # nothing to sum: the stage has no parameters
            self.recorder.add(instruction, start, self.recorder.mark())

        def ended(_: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                self.recorder.add(instruction, start, self.recorder.mark())

        for handle in reduction.handles:
            if hasattr(handle, "get_future"):
                self._watched.append(handle.get_future().then(ended))
            else:  # this transport does not tell: it ended when it was waited for, at the latest
                self._unwatched.append(ended)

    def _arrived(self, what: str, pipe: int, stage: int, microbatch: int) -> list[tuple[int, Tensor]]:
        before = self.recorder.mark()
        found = super()._arrived(what, pipe, stage, microbatch)
        self._idle = before, self.recorder.mark()
        for peer, _ in found:
            asked = self._asked.pop((pipe, stage, microbatch, what, peer))
            self.recorder.add(
                Instruction(RECEIVE, pipe, stage, microbatch, what, peer), asked, self._idle[1], self._idle
            )
        return found

    def _await_reductions(self) -> None:
        before = self.recorder.mark()
        super()._await_reductions()
        self._idle = before, self.recorder.mark()
        for noted in self._watched:
            noted.wait()
        for ended in self._unwatched:
            ended(None)
        self._watched, self._unwatched = [], []
