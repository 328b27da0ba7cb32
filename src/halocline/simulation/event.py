"""An event: one instruction of one rank with its times. Simulated and measured timelines are lists of these, so the
drawings take either; an event knows nothing of how its times were found.
"""

from __future__ import annotations

from typing import NamedTuple

from halocline.schedule.instruction import Instruction


class Event(NamedTuple):
    """When a rank did an instruction."""

    rank: int
    instruction: Instruction
    start: float
    """Compute: when the team began. Send: when the link took the message. Receive: when the rank asked for it."""
    end: float
    """Compute: when it was done. Send: when the last byte had left. Receive: when the message was there."""
    wait: float = 0.0
    """Compute: how long the rank stood idle before it. Receive: from asking to arrival."""
