"""The protocols of a device as energy sees it: a meter that counts joules and a clock that can be set; and the watch
over a meter. Real and simulated devices fit them alike; nothing here knows one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

INTERVAL = 0.01
"""Seconds between two looks at a counter: a tenth of the time between advances of NVML's."""


class NoMeter(ValueError):
    """What was asked for cannot measure here; says why and what would."""


class ClockRefused(RuntimeError):
    """The clock may not be set by this process, or not to this frequency; says why and what would help."""


class Reading(NamedTuple):
    """The counter at a moment."""

    time: float
    """Seconds of the meter's time."""
    energy: float
    """Joules so far, from any start."""


class Meter(Protocol):
    """Counts the energy of one device."""

    @property
    def name(self) -> str:
        """What was measured, for files and people; a simulated one begins with "simulated"."""

    def time(self) -> float:
        """Seconds now, on the clock by which this device lives: the machine's, or a simulated device's own."""

    def energy(self) -> float:
        """Joules so far. Real counters advance about every 100 ms, whenever they are asked."""


@runtime_checkable
class Clock(Protocol):
    """Sets the frequency of one device. A GPU is a meter and a clock; a CPU may be a meter alone."""

    @property
    def name(self) -> str: ...

    def frequencies(self) -> list[int]:
        """MHz that can be set, highest first."""

    def actual(self) -> int:
        """MHz at which the device runs now."""

    def set(self, frequency: int) -> None:
        """From now on run at this many MHz. Raises `ClockRefused` where that is not allowed."""

    def reset(self) -> None:
        """From now on run at the device's own choice. May be called at any time, again and again."""

    def rescue(self) -> list[str]:
        """The words with which the warden (see clock) resets this clock from outside."""


class CounterWatch:
    """Notes every advance of a meter's counter, with its time, until it is closed. A real counter is looked at by a
    thread many times between two advances; a simulated one keeps its advances itself."""

    def __init__(self, meter: Meter, interval: float = INTERVAL) -> None:
        self._meter, self._interval = meter, interval
        self._own: Callable[[], list[Reading]] | None = getattr(meter, "changes", None)
        self._found: list[Reading] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        if self._own is None:
            self._thread = threading.Thread(target=self._look, name="halocline-meter", daemon=True)
            self._thread.start()

    def take(self) -> list[Reading]:
        """The advances since this was last asked."""
        if self._own is not None:
            return self._own()
        with self._lock:
            found, self._found = self._found, []
        return found

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        last = self._meter.energy()
        while not self._over.wait(self._interval):
            energy = self._meter.energy()
            if energy != last:
                last = energy
                with self._lock:
                    self._found.append(Reading(self._meter.time(), energy))
