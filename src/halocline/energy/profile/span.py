"""A span: what a device did from when to when, at which frequency. Timing files, attribution and profiles are made of
spans."""

from __future__ import annotations

from typing import NamedTuple

from halocline.schedule.instruction import Instruction


class Span(NamedTuple):
    """One instruction at work, without what it waited for."""

    instruction: Instruction
    start: float
    """Seconds of the device's time."""
    end: float
    frequency: int | None = None
    """MHz that was set; None for the device's own choice."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Load(NamedTuple):
    """What draws a power of its own: a kind of instruction of a stage at a frequency."""

    stage: int
    kind: str
    frequency: int | None


def load(span: Span) -> Load:
    return Load(span.instruction.stage, span.instruction.kind, span.frequency)
