"""A window: some steps in a row at the same frequencies, and what each kind of instruction took in them. Times are
measured; energies come from attribution, for the counter is too slow to be read around an instruction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from halocline.energy.controller import DeviceStep
from halocline.energy.device.meter import Reading
from halocline.energy.profile.attribution import WAITING, Attribution, Estimate, energy_at, mean
from halocline.energy.profile.span import Load, Span, load
from halocline.schedule.instruction import COMPUTE


class Measurement(NamedTuple):
    """What one run of an instruction takes, on one rank."""

    stage: int
    kind: str
    frequency: int | None
    time: Estimate
    energy: Estimate | None
    """None without a meter."""


@dataclass
class StepWindow:
    """Collects the steps of a window. The attribution may know more windows than this one."""

    attribution: Attribution = field(default_factory=Attribution)
    steps: list[DeviceStep] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    """From the last advance before the window on."""

    def add(self, step: DeviceStep, counts: bool = True) -> None:
        """One more step; it teaches the attribution also where it does not count for the window."""
        self.attribution.add(step.begin, step.end, step.spans, step.readings)
        self.readings.extend(step.readings)
        if counts:
            self.steps.append(step)

    def clear(self) -> None:
        """Begin the next window."""
        self.steps, self.readings = [], self.readings[-2:]

    # -- what it found ---------------------------------------------------------------------------------------------

    def times(self) -> list[float]:
        """Seconds of each step."""
        return [step.end - step.begin for step in self.steps]

    def energies(self) -> list[float] | None:
        """Joules of each step, between the counter's advances on a straight line; None without a meter."""
        if len(self.readings) < 2:
            return None
        at = {time: energy_at(self.readings, time) for step in self.steps for time in (step.begin, step.end)}
        return [max(0.0, at[step.end] - at[step.begin]) for step in self.steps]

    def blocking_power(self) -> Estimate | None:
        """Watts while waiting; None where the device was never seen to wait."""
        return self.attribution.powers().get(WAITING) if self.attribution.waited > 0 else None

    def measured(self) -> list[Measurement]:
        """What each computation took, by stage, kind and frequency."""
        powers = self.attribution.powers()
        seconds: dict[Load, list[float]] = {}
        for span in self._computed():
            seconds.setdefault(load(span), []).append(span.seconds)
        found = []
        for name, values in seconds.items():
            time = mean(values)
            found.append(Measurement(*name, time, powers[name].at_least(0.0).times(time) if powers else None))
        return found

    def breakdown(self, named: dict[int, str]) -> tuple[dict[str, list[list[float]]], dict[str, list[list[float]]]]:
        """Seconds and joules of every computation: name -> for each step, a number for each run. `named`: what follows
        a kind in the names of a stage's instructions. No joules without a meter."""
        powers = self.attribution.powers()
        times: dict[str, list[list[float]]] = {}
        joules: dict[str, list[list[float]]] = {}
        for number, step in enumerate(self.steps):
            for span in step.spans:
                if span.instruction.kind not in COMPUTE:
                    continue
                name = f"{span.instruction.kind}{named[span.instruction.stage]}"
                times.setdefault(name, [[] for _ in self.steps])[number].append(span.seconds)
                if powers:
                    energy = span.seconds * max(0.0, powers[load(span)].value)
                    joules.setdefault(name, [[] for _ in self.steps])[number].append(energy)
        return times, joules

    def _computed(self) -> Iterable[Span]:
        return (span for step in self.steps for span in step.spans if span.instruction.kind in COMPUTE)
