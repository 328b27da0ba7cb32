"""The law of a simulated GPU: how long an instruction takes and what power it draws at a frequency. Made up, in the
shape that measured GPUs have; the numbers are near an A100's. Knows no rank and no time.

With x = f / f_max:

    seconds(kind, f) = base(kind) x work x ((1 - m) / x + m)
    watts(kind, f)   = blocking + extra + dynamic(kind) x v(x)^2 x

m is the part bound by memory, which the clock does not change; v the voltage, linear down to a knee and flat below it.
The power drawn while a device waits, `blocking`, does not depend on the frequency. `extra` is what memory and leakage
add while it computes; because of it the cheapest frequency is not the lowest.

    energy of a forward beyond waiting, (watts - blocking) x seconds

    |*                                  .
    |  *                             .
    |     *                      .
    |         *  .  *  .  *
    +----------------------------------
     f_max       870 MHz          210 MHz
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from halocline.schedule.instruction import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, RECOMPUTE, REDUCE, STEP

FREQUENCIES = tuple(range(1410, 209, -15))
"""MHz, highest first."""


@dataclass(frozen=True)
class Kind:
    """One kind of instruction."""

    seconds: float
    """At the highest frequency, with one unit of work."""
    dynamic: float
    """Watts that the clock switches at the highest frequency."""
    memory: float
    """The part of the time that does not depend on the clock."""


_KINDS = {
    FORWARD: Kind(0.030, 260.0, 0.25),
    RECOMPUTE: Kind(0.030, 260.0, 0.25),
    BACKWARD: Kind(0.060, 280.0, 0.20),
    BACKWARD_INPUT: Kind(0.030, 280.0, 0.20),
    BACKWARD_WEIGHT: Kind(0.030, 280.0, 0.20),
    REDUCE: Kind(0.010, 40.0, 1.0),
    STEP: Kind(0.005, 60.0, 0.9),
}


@dataclass(frozen=True)
class Law:
    """Times and powers of one kind of GPU."""

    frequencies: tuple[int, ...] = FREQUENCIES
    kinds: Mapping[str, Kind] = field(default_factory=lambda: _KINDS)
    blocking: float = 80.0
    """Watts while waiting."""
    extra: float = 45.0
    """Watts on top while computing, at any frequency."""
    knee: float = 0.62
    """The part of the highest frequency below which the voltage stays as it is."""
    floor: float = 0.70
    """The lowest voltage, of the highest."""

    def seconds(self, kind: str, frequency: int, work: float = 1.0) -> float:
        law, x = self.kinds[kind], frequency / self.frequencies[0]
        return law.seconds * work * ((1 - law.memory) / x + law.memory)

    def watts(self, kind: str, frequency: int) -> float:
        law, x = self.kinds[kind], frequency / self.frequencies[0]
        voltage = self.floor + (1 - self.floor) * max(0.0, (x - self.knee) / (1 - self.knee))
        return self.blocking + self.extra + law.dynamic * voltage**2 * x
