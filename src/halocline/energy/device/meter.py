"""The protocols of a device as energy sees it: a meter that counts joules and a clock that can be set. Real and
simulated devices fit them alike; nothing here knows one.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable


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
