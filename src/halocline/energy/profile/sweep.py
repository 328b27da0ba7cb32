"""The sweep: every stage goes down the frequencies, from the highest, until energy no longer falls; what was measured
on the way is the profile. Every rank holds the same sweep and is told the same, so all agree without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from halocline.energy.controller import DeviceStep, Frequencies, Player
from halocline.energy.profile.attribution import Measurement, StepWindow
from halocline.energy.profile.table import Estimate, Found, of_team
from halocline.schedule.instruction import COMPUTE, REDUCE, Instruction


class Descent:
    """One stage's way down the frequencies: which one it tries next.

    What must fall is the energy an instruction takes beyond that of waiting as long, since a slower instruction mostly
    replaces waiting; at a blocking power of 0 it is the energy itself.
    """

    def __init__(self, available: Sequence[int], *, lowest: int = 0, stride: int = 1, patience: int = 2) -> None:
        """`available`, highest first; of these every `stride`-th that is at least `lowest`, the highest in any case."""
        chosen = list(available[::stride])
        self._ladder = [chosen[0], *(frequency for frequency in chosen[1:] if frequency >= lowest)]
        self._patience = patience
        self._at = 0
        self._best: float | None = None
        self._worse = 0

    @property
    def done(self) -> bool:
        return self._at >= len(self._ladder) or self._worse >= self._patience

    @property
    def frequency(self) -> int:
        """What to try now; the highest again when done, so that a stage that is done slows nobody."""
        return self._ladder[0] if self.done else self._ladder[self._at]

    def saw(self, cost: float) -> None:
        """What the frequency tried now costs: joules beyond waiting, of one microbatch."""
        if self.done:
            return
        self._at += 1
        if self._best is None or cost < self._best:
            self._best, self._worse = cost, 0
        else:
            self._worse += 1


class Report(NamedTuple):
    """What a rank found in a window."""

    rows: list[Measurement]
    blocking: Estimate | None = None
    """Watts while waiting."""
    stuck: int | None = None
    """MHz at which the rank's device runs, if its clock may not be set."""


class Sweep:
    """Which stage runs at which frequency, and what was found."""

    def __init__(
        self, available: Sequence[Sequence[int]], *, lowest: int = 0, stride: int = 1, patience: int = 2
    ) -> None:
        """`available`: MHz of each stage, highest first."""
        if not all(available):
            raise ValueError(
                "there are 0 frequencies to sweep: use --meter simulated, a GPU's nvml or zeus, or --from DIR"
            )
        self.descents = [Descent(own, lowest=lowest, stride=stride, patience=patience) for own in available]
        self.found: Found = {}
        self.blocking: Estimate | None = None
        self._stuck = False

    @property
    def done(self) -> bool:
        """Whether every stage has come to its end, or a clock cannot be set and there is one frequency to measure."""
        return self._stuck or all(descent.done for descent in self.descents)

    @property
    def clocks(self) -> tuple[int, ...]:
        """MHz of each stage now; a stage that is done runs at its highest, and slows nobody."""
        return tuple(descent.frequency for descent in self.descents)

    def saw(self, reports: Collection[Report]) -> None:
        """A window is over; what every rank found in it. A stage of which nobody tells stays where it is."""
        self._stuck = any(report.stuck is not None for report in reports)
        known = [report.blocking for report in reports if report.blocking is not None]
        if known:
            self.blocking = min(known, key=lambda estimate: estimate.error)
        power = self.blocking.value if self.blocking is not None else 0.0
        same: dict[tuple[int, str], list[Measurement]] = {}
        for row in (row for report in reports for row in report.rows):
            same.setdefault((row.stage, row.kind), []).append(row)
        costs: dict[int, float] = {}
        for (stage, kind), rows in sorted(same.items()):
            descent = self.descents[stage]
            if descent.done:
                continue
            energies = [row.energy for row in rows if row.energy is not None]
            if not energies:
                raise ValueError(
                    "no energy was measured: a sweep needs a meter (--meter nvml, zeus or simulated), and steps in "
                    "which its counter advances, about every 0.1 s; use more --profile-steps"
                )
            stuck = [report.stuck for report in reports if report.stuck and any(r.stage == stage for r in report.rows)]
            time, energy = of_team([row.time for row in rows], energies)
            self.found[stage, kind, min(stuck, default=descent.frequency)] = time, energy
            if kind != REDUCE:
                costs[stage] = costs.get(stage, 0.0) + energy.value - power * time.value
        for stage, cost in costs.items():
            self.descents[stage].saw(cost)


class SweepPlayer(Player):
    """Plays a sweep."""

    def __init__(
        self,
        sweep: Sweep,
        instructions: Sequence[Instruction],
        steps: int,
        exchange: Callable[[Report], Collection[Report]],
        *,
        warmup: int = 0,
        settle: int = 0,
        stuck: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`steps` of a window count, after `settle` steps that do not, and `warmup` in the first. `exchange` gives
        every rank's report to all. `stuck`: MHz, once the device's clock is known not to be settable."""
        self._stuck = stuck
        self.sweep = sweep
        self._stages = [i.stage for i in instructions if i.kind in COMPUTE]
        self._steps, self._settle, self._exchange = steps, settle, exchange
        self._window = StepWindow()
        self._left = steps + max(settle, warmup)

    def play(self, step: int) -> Frequencies | None:
        if not self._left:
            found = Report(self._window.measured(), self._window.blocking_power(), self._stuck())
            self.sweep.saw(self._exchange(found))
            self._window.clear()
            self._left = self._steps + self._settle
        clocks = self.sweep.clocks
        return [clocks[stage] for stage in self._stages]

    def step(self, step: DeviceStep) -> None:
        self._left -= 1
        self._window.add(step, self._left < self._steps)
