"""How a run is going, for people: a bar where there is a terminal, else a line every few seconds, on standard error.

Where a step takes long, the instruction that is under way. Knows numbers and words; nothing of training.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from halocline.schedule.events import Mark, Observer
from halocline.schedule.instruction import Instruction

_EVERY = 5.0
"""Seconds between lines where there is no terminal."""
_LONG = 15.0
"""Seconds without a word after which a step tells how far it is."""
_WINDOW = 20
"""Steps over which speed is averaged."""
_ENDLESS = 10**9
"""So many steps stand for: until something else ends the run."""


@dataclass
class Speed:
    """Samples per second and seconds per step, over the last steps."""

    steps: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def add(self, samples: int, seconds: float) -> None:
        self.steps.append((samples, seconds))

    @property
    def samples_per_second(self) -> float:
        seconds = sum(s for _, s in self.steps)
        return sum(n for n, _ in self.steps) / seconds if seconds else 0.0

    @property
    def seconds_per_step(self) -> float:
        return sum(s for _, s in self.steps) / len(self.steps) if self.steps else 0.0


@dataclass(frozen=True)
class Standing:
    """What is shown after a step."""

    step: int
    total: int
    epoch: int
    loss: float
    speed: float
    """Of `unit` per second."""
    unit: str
    memory: int
    """Bytes."""
    left: float
    """Seconds."""
    scores: dict[str, float] = field(default_factory=dict)
    """Of the last evaluation."""
    samples: int = 0
    """Of this step."""
    seconds: float = 0.0
    """That this step took."""
    train_scores: dict[str, float] = field(default_factory=dict)
    """Of this step's batch."""
    epoch_ends: bool = False
    """With this step."""

    @property
    def endless(self) -> bool:
        return self.total >= _ENDLESS

    @property
    def place(self) -> str:
        return f"step {self.step}" if self.endless else f"step {self.step}/{self.total}"

    @property
    def rest(self) -> str:
        """How long it still takes; nothing where nobody knows."""
        return "" if self.endless else f"{clock(self.left)} left"

    def words(self) -> list[str]:
        words = [f"loss {self.loss:.4g}", *score_words(self.scores)]
        return [*words, f"{_amount(self.speed)} {self.unit}/s", f"{self.memory / 2**30:.2f} GiB"]

    def line(self, timed: bool = False) -> str:
        """All of it in one line; `timed`, with the time of this step."""
        words = [self.place, *self.words(), *filter(None, [self.rest])]
        return "  ".join([*words, f"{self.seconds:.3f} s"] if timed else words)


class Progress(Observer):
    """Where progress is shown."""

    opening = ""
    """What is said when the first step begins."""

    def __init__(self) -> None:
        self._step = self._done = 0
        self._heard = time.monotonic()

    def show(self, reading: Standing) -> None:
        raise NotImplementedError

    def say(self, text: str) -> None:
        raise NotImplementedError

    def evaluated(self, text: str) -> None:
        """Say how an evaluation came out."""
        self.say(text)

    def close(self) -> None:
        """Nothing more is to come."""

    def step_begins(self, step: int, mark: Mark) -> None:
        if self.opening:
            self.say(self.opening)
            self.opening = ""
        self._step, self._done, self._heard = step, 0, time.monotonic()

    def begin(self, instruction: Instruction, mark: Mark) -> None:
        self._done += 1
        if time.monotonic() - self._heard > _LONG:
            self._heard = time.monotonic()
            self.inside(f"step {self._step + 1}: instruction {self._done}, {instruction}")

    def inside(self, text: str) -> None:
        """How far a long step is."""
        self.say(text)


def progress(rank: int, verbose: bool = False, opening: str = "") -> Progress:
    """What suits this process and its terminal; `verbose`, with a line for every step."""
    if rank:
        return Silent()
    found = Bar(verbose) if sys.stderr.isatty() else Lines(verbose=verbose)
    found.opening = opening
    return found


class Silent(Progress):
    """For all ranks but the first."""

    def show(self, reading: Standing) -> None:
        return None

    def say(self, text: str) -> None:
        return None


class Lines(Progress):
    """A line every few seconds, or for every step."""

    def __init__(self, every: float = _EVERY, file: Any = None, verbose: bool = False) -> None:
        super().__init__()
        self.every, self.file, self.verbose = every, file, verbose
        self._last = -every

    def show(self, reading: Standing) -> None:
        now = time.monotonic()
        if self.verbose or now - self._last >= self.every or reading.step == reading.total:
            self._last = now
            self.say(reading.line(self.verbose))

    def say(self, text: str) -> None:
        print(text, file=self.file or sys.stderr, flush=True)


class Bar(Progress):
    """A bar that moves; `verbose`, below a line for every step."""

    def __init__(self, verbose: bool = False) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TextColumn("{task.fields[rest]}"),
            console=Console(stderr=True, highlight=False),
        )
        self._verbose = verbose
        self._task: Any = None

    def show(self, reading: Standing) -> None:
        if self._task is None:
            self._bar.start()
            total = None if reading.endless else reading.total
            self._task = self._bar.add_task("", total=total, epoch=0, words="", rest="")
        words = "  ".join(reading.words())
        self._bar.update(self._task, completed=reading.step, epoch=reading.epoch + 1, words=words, rest=reading.rest)
        if self._verbose:
            self.say(reading.line(timed=True))

    def say(self, text: str) -> None:
        self._bar.console.print(text, soft_wrap=True, markup=False)

    def inside(self, text: str) -> None:
        if self._task is None:
            self.say(text)
        else:
            self._bar.update(self._task, rest=text)

    def close(self) -> None:
        self._bar.stop()


def score_words(scores: dict[str, float]) -> list[str]:
    """The scores of an evaluation as a person reads them: shares as per cent."""
    return [
        f"{name} {value:.4g}" if name in ("loss", "perplexity") else f"{name} {100 * value:.1f}%"
        for name, value in scores.items()
        if name != "loss"
    ]


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def clock(seconds: float) -> str:
    """4000 -> 1:06:40."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
