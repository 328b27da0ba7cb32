"""A trace of PyTorch's profiler: every operator and kernel of a few steps after the warm-up, one file per rank, for
Perfetto (ui.perfetto.dev) or chrome://tracing. Knows nothing of what is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from halocline.schedule.events import Mark, Observer
from halocline.schedule.instruction import Instruction

STEPS = 2
"""Steps that are traced: a file of some hundred megabytes helps nobody."""


class PytorchTrace(Observer):
    """One rank's `pytorch-trace-R.json`, with the name of each instruction around its operators."""

    def __init__(self, directory: Path, rank: int, warmup: int, say: Callable[[str], None]) -> None:
        self.path = directory / f"pytorch-trace-{rank}.json"
        self._warmup, self._say = warmup, say
        self._profile: Any = None
        self._open: list[Any] = []
        self._taken = 0
        """Steps seen."""

    def step_begins(self, step: int, mark: Mark) -> None:
        if self._taken == self._warmup:
            self._profile = profile(activities=[a for a in supported_activities() if a in _WANTED])
            self._profile.start()

    def begin(self, instruction: Instruction, mark: Mark) -> None:
        if self._profile is not None:
            around = record_function(str(instruction))
            around.__enter__()
            self._open.append(around)

    def end(self, instruction: Instruction, mark: Mark) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def step_ends(self, step: int, mark: Mark) -> None:
        self._taken += 1
        if self._taken == self._warmup + STEPS:
            self._write()

    def close(self) -> None:
        """Write what there is of a run that ended early."""
        self._write()
        if self._taken <= self._warmup:
            self._say(
                f"no PyTorch trace: the run took {self._taken} steps, and tracing starts after {self._warmup}; take "
                f"more, or lower --profile-warmup"
            )

    def _write(self) -> None:
        while self._open:  # a step that failed in the middle of an instruction
            self._open.pop().__exit__(None, None, None)
        if self._profile is not None:
            self._profile.stop()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._profile.export_chrome_trace(str(self.path))
            self._say(f"wrote {self.path}")
            self._profile = None


_WANTED = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
