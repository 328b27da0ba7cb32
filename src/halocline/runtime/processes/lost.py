"""What is said of a rank that is gone, and the error that says it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


class PeerLost(RuntimeError):
    """A message did not come or could not be delivered; says who waited for what from whom."""


def is_lost(error: BaseException) -> bool:
    """Whether an error of a collective operation inside a layer (DTensor's, FSDP's) says that a peer is gone."""
    text = str(error)
    return not isinstance(error, PeerLost) and any(word in text for word in ("gloo/transport", "Timed out waiting"))


@dataclass(frozen=True)
class LostRank:
    """A rank that ended before its time."""

    rank: int
    role: str = ""
    instruction: str = ""
    """The last one it began; empty between steps or if unknown."""
    step: int = -1
    reason: str = "died"
    """What became of it: failed, died, was killed by a signal."""
    detail: str = ""
    """Its error."""
    waits_for: int = -1
    """The rank that it was waiting for; -1 for none."""

    def __str__(self) -> str:
        role = f" ({self.role})" if self.role else ""
        where = f" in {self.instruction}" if self.instruction else ""
        step = f" of step {self.step}" if self.step >= 0 else ""
        return f"rank {self.rank}{role} {self.reason}{where}{step}" + (f": {self.detail}" if self.detail else "")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> LostRank:
        return cls(**json.loads(text))
