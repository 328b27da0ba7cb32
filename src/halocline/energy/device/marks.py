"""Marks: moments in the work of a device, taken now and read later. On a GPU the host runs ahead, so a mark is an event
that has yet to happen (see train/cuda_marks); elsewhere it is the time at which it was taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

Mark = Any
"""A moment, in the form of whoever took it."""


class Marks(Protocol):
    """Takes marks and reads them, on the same clock as the device's meter."""

    @property
    def immediate(self) -> bool:
        """Whether a mark has happened when it is taken, so that reading it never waits."""
        ...

    def mark(self) -> Mark: ...

    def seconds(self, mark: Mark) -> float:
        """When it happened; waits until it has."""
        ...

    def wait(self, mark: Mark) -> None:
        """Wait until it has happened."""
        ...


class TimeMarks:
    """Marks of a device that does a thing before the host goes on: a CPU, or a simulated device by its own time."""

    immediate = True

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.mark = now

    def seconds(self, mark: Mark) -> float:
        seconds: float = mark
        return seconds

    def wait(self, mark: Mark) -> None:
        """It has happened."""
