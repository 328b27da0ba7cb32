"""A turn: what all ranks of a job play until they ask again, small enough to keep one for every round. The frequencies
themselves follow from it; after a restart the same turn gives the same frequencies.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

ALL_MAX = "all-max"
PROFILING = "profiling"
SOLVING = "solving"
DEPLOYED = "deployed"
PLAYING = "playing"
FAILED = "failed"


@dataclass(frozen=True)
class Notice:
    """Somebody is slow: iterations take `factor` times the shortest, whatever the others do."""

    factor: float
    rank: int | None = None
    replica: int | None = None

    def __str__(self) -> str:
        who = f"rank {self.rank}" if self.rank is not None else f"replica {self.replica}"
        return f"{self.factor:g}" if self.rank is None and self.replica is None else f"{self.factor:g} by {who}"


@dataclass(frozen=True)
class Turn:
    """What is played in one round."""

    phase: str
    clocks: tuple[int, ...] | None = None
    """profiling: MHz of each stage. None outside of it, and while every rank runs at its highest."""
    time: float | None = None
    """The plan that is played: the slowest of at most this many seconds."""
    notice: Notice | None = None
    eased: bool = False
    """Whether the straggler's own replica plays a plan made for it (see straggling)."""

    def to_text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Turn:
        fields = json.loads(text)
        clocks, notice = fields["clocks"], fields["notice"]
        fields["clocks"] = None if clocks is None else tuple(clocks)
        fields["notice"] = None if notice is None else Notice(**notice)
        return cls(**fields)
