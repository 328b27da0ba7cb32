"""Attribution: from an energy counter that advances every 100 ms to the power of each kind of instruction, with an
error bar. The counter is never read around an instruction.

Between two advances the counter gains the sum, over what the device did meanwhile, of power x seconds:

    E[k+1] - E[k]  =  sum over loads  P[load] x seconds of the load in (t[k], t[k+1])  +  P[waiting] x the rest

Hundreds of such equations for a handful of powers are solved by least squares. A load is a kind of instruction of a
stage at a frequency. Where the equations cannot tell two loads apart, both get their common mean and an error bar that
says so: every power is held, as weakly as a single equation would, to the mean power of the device.

A window (`StepWindow`) is some steps in a row at the same frequencies, and what each kind of instruction took in them:
times are measured, energies are attributed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from halocline.energy.controller import DeviceStep, Span
from halocline.energy.device.meter import Reading
from halocline.energy.profile.table import Estimate
from halocline.schedule.instruction import COMPUTE


class Load(NamedTuple):
    """What draws a power of its own: a kind of instruction of a stage at a frequency."""

    stage: int
    kind: str
    frequency: int | None


def load(span: Span) -> Load:
    return Load(span.instruction.stage, span.instruction.kind, span.frequency)


WAITING = Load(-1, "waiting", None)
"""The device is not at work: its power is the blocking power."""

_ELSEWHERE = 0.1
"""The part of the time between two advances that may lie outside of steps; more, and the equation is left out."""
_UNIT = 1e-3
"""Joules by which counters count: no equation is more exact."""


def mean(values: Sequence[float]) -> Estimate:
    """Of independent measurements of one thing."""
    center = sum(values) / len(values)
    if len(values) < 2:
        return Estimate(center, abs(center))
    square = sum((value - center) ** 2 for value in values) / (len(values) - 1)
    return Estimate(center, (square / len(values)) ** 0.5)


class Powers(dict[Load, Estimate]):
    """Watts of every load. Of a load that no equation holds, only the device's mean power is known."""

    mean = Estimate(0.0, 0.0)

    def __missing__(self, name: Load) -> Estimate:
        return self.mean


class Attribution:
    """Collects steps and solves for powers whenever asked."""

    def __init__(self) -> None:
        self._numbers: dict[Load, int] = {WAITING: 0}
        self._products: dict[tuple[int, int], float] = {}
        """Sums over equations of seconds x seconds, of two loads."""
        self._moments: dict[int, float] = {}
        """Sums of seconds x joules."""
        self._squares = self._joules = self._seconds = 0.0
        self.equations = 0
        self.waited = 0.0
        """Seconds that the device was seen to wait."""
        self._readings: deque[Reading] = deque()
        self._spans: deque[Span] = deque()
        self._steps: deque[tuple[float, float]] = deque()

    def add(self, begin: float, end: float, spans: Iterable[Span], readings: Iterable[Reading]) -> None:
        """A step from `begin` to `end`: what the device did, and the counter's advances since the last step was added.
        An advance after the end counts once the next step is added."""
        self._steps.append((begin, end))
        self._spans.extend(sorted(spans, key=lambda span: span.start))
        self._readings.extend(readings)
        while len(self._readings) > 1 and self._readings[1].time <= end:
            first, second = self._readings.popleft(), self._readings[0]
            while self._spans and self._spans[0].end <= first.time:
                self._spans.popleft()
            while self._steps and self._steps[0][1] <= first.time:
                self._steps.popleft()
            self._equation(first, second)

    def _equation(self, first: Reading, second: Reading) -> None:
        length = second.time - first.time
        inside = sum(max(0.0, min(b, second.time) - max(a, first.time)) for a, b in self._steps)
        if length <= 0 or inside < (1 - _ELSEWHERE) * length:
            return
        seconds: dict[int, float] = {}
        for span in self._spans:
            if span.start >= second.time:
                break
            overlap = min(span.end, second.time) - max(span.start, first.time)
            number = self._numbers.setdefault(load(span), len(self._numbers))
            seconds[number] = seconds.get(number, 0.0) + max(0.0, overlap)
        seconds[0] = max(0.0, length - sum(seconds.values()))
        self.waited += seconds[0]
        joules = second.energy - first.energy
        for i, x in seconds.items():
            self._moments[i] = self._moments.get(i, 0.0) + x * joules
            for j, y in seconds.items():
                self._products[i, j] = self._products.get((i, j), 0.0) + x * y
        self._squares += joules**2
        self._joules += joules
        self._seconds += length
        self.equations += 1

    def powers(self) -> Powers:
        """Watts of every load, and while waiting; none before the first equation."""
        if not self.equations:
            return Powers()
        size = len(self._numbers)
        products, moments = np.zeros((size, size)), np.zeros(size)
        for (i, j), value in self._products.items():
            products[i, j] = value
        for i, value in self._moments.items():
            moments[i] = value
        center = self._joules / self._seconds
        spread = max(abs(center), _UNIT)  # how far from the mean a power may be before anything is known of it
        identity = np.eye(size) / spread**2
        variance = (spread * self._seconds / self.equations) ** 2
        for _ in range(20):  # the error of an equation and the powers depend on each other
            precision = products / variance + identity
            watts = np.linalg.solve(precision, moments / variance + center / spread**2)
            rest = self._squares - 2 * watts @ moments + watts @ products @ watts
            known = size - np.trace(np.linalg.solve(precision, identity))
            before, variance = variance, max(rest / max(self.equations - known, 1.0), _UNIT**2)
            if abs(before - variance) < 1e-3 * variance:
                break
        errors = np.sqrt(np.diag(np.linalg.inv(products / variance + identity)))
        found = Powers(
            {name: Estimate(float(watts[number]), float(errors[number])) for name, number in self._numbers.items()}
        )
        found.mean = Estimate(center, spread)
        return found


def energy_at(readings: Sequence[Reading], time: float) -> float:
    """The counter at a moment: on the line between the advances around it, or through the two nearest ones."""
    if len(readings) < 2:
        return readings[0].energy if readings else 0.0
    number = next((n for n, reading in enumerate(readings) if reading.time >= time), len(readings) - 1)
    a, b = readings[max(1, number) - 1], readings[max(1, number)]
    return a.energy + (b.energy - a.energy) * (time - a.time) / (b.time - a.time)


class Measurement(NamedTuple):
    """What one run of an instruction takes, on one rank."""

    stage: int
    kind: str
    frequency: int | None
    time: Estimate
    energy: Estimate | None
    """None without a meter."""


def measurements(spans: Iterable[Span], powers: Powers) -> list[Measurement]:
    """What the computations among the spans took, by stage, kind and frequency."""
    seconds: dict[Load, list[float]] = {}
    for span in spans:
        if span.instruction.kind in COMPUTE:
            seconds.setdefault(load(span), []).append(span.seconds)
    found = []
    for name, values in seconds.items():
        time, power = mean(values), powers[name]
        energy = Estimate(max(0.0, power.value), power.error).times(time) if powers else None
        found.append(Measurement(*name, time, energy))
    return found


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
        return measurements((span for step in self.steps for span in step.spans), self.attribution.powers())

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
