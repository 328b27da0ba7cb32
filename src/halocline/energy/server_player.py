"""Plays what an energy server says: fetches a schedule, plays it for a window of steps, reports what it took, and asks
again. While the server is gone the device runs at its own clock.

What was played is kept, window by window, as energy-R.jsonl in the run's directory: one JSON object a line, written as
training goes.

    {"device": "simulated GPU", "phase": "deployed", "round": 14, "time": 1.06, "energy": 318.2, ...}

`time`, `energy` and `blocking_power` are this rank's own, the first two means over the window's steps; `planned_time`
and `planned_energy` are what the server promised for an iteration of a replica.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halocline.energy.client import RankClient, RankSchedule
from halocline.energy.controller import DeviceStep, Frequencies, Player
from halocline.energy.profile.attribution import StepWindow
from halocline.energy.profile.table import Estimate, kind_of
from halocline.schedule.instruction import COMPUTE, Instruction


@dataclass(frozen=True)
class Played:
    """A window that is over."""

    schedule: RankSchedule | None
    """None if the server was gone."""
    times: list[float]
    """Seconds of each step."""
    energies: list[float] | None
    """Joules of each step, of this rank; None without a meter."""
    blocking: Estimate | None
    """Watts while waiting, as far as they are known."""


class ServerPlayer(Player):
    """Plays what a server says."""

    def __init__(
        self,
        connect: Callable[[], RankClient | None],
        instructions: Sequence[Instruction],
        steps: int,
        *,
        available: Sequence[int],
        warmup: int = 0,
        settle: int = 0,
        say: Callable[[str], None] = lambda _: None,
        over: Callable[[Played], None] = lambda _: None,
    ) -> None:
        """`connect` is asked for the server after `warmup` steps, and again before each window until there is one.
        `steps` of a window count, after `settle` steps that do not. `available` are the clock's frequencies. `over` is
        told of every window."""
        self._connect, self._steps, self._settle, self._say, self._over = connect, steps, settle, say, over
        self._client: RankClient | None = None
        self._kinds = [i.kind for i in instructions if i.kind in COMPUTE]
        stages = sorted({i.stage for i in instructions if i.kind in COMPUTE})
        self._named = {stage: f" s{stage}" if len(stages) > 1 else "" for stage in stages}
        self._available = frozenset(available)
        self._window = StepWindow()
        self._left = warmup
        """Steps until the next window."""
        self._playing = False
        """Whether this is a window, and not the warm-up."""
        self._schedule: RankSchedule | None = None
        self._frequencies: Frequencies | None = None
        self._complained = False

    def play(self, step: int) -> Frequencies | None:
        if not self._left:
            if self._client is None:
                self._client = self._connect()
            self._schedule = self._client.schedule() if self._client is not None else None
            self._frequencies = self._usable(self._schedule)
            self._left, self._playing = self._settle + self._steps, True
        return self._frequencies

    def step(self, step: DeviceStep) -> None:
        self._left -= 1
        self._window.add(step, self._playing and self._left < self._steps)
        if self._left or not self._playing:
            return
        times, energies = self._window.times(), self._window.energies()
        seconds, joules = self._window.breakdown(self._named)
        if self._client is not None and self._as_played():
            self._client.report(times, energies or [0.0] * len(times), seconds, joules)
        self._over(Played(self._schedule, times, energies, self._window.blocking_power()))
        self._window.clear()

    def _as_played(self) -> bool:
        """Whether the device ran at what it was told: one whose clock may not be set has nothing to report."""
        spans = (span for step in self._window.steps for span in step.spans if span.instruction.kind in COMPUTE)
        return self._frequencies is None or all(span.frequency is not None for span in spans)

    def _usable(self, schedule: RankSchedule | None) -> Frequencies | None:
        """The frequencies, if they are for this rank's list and this device."""
        if schedule is None or not self._available:
            return None  # that the clock cannot be set has been said
        kinds = [kind_of(kind) for kind, _ in schedule.frequencies]
        frequencies = [frequency for _, frequency in schedule.frequencies]
        strange = sorted({f for f in frequencies if f and f not in self._available}, reverse=True)
        if kinds == self._kinds and not strange:
            return frequencies
        if not self._complained:
            self._complained = True
            if kinds != self._kinds:
                why = f"{len(kinds)} computations, and this rank's list is another with {len(self._kinds)}"
            else:
                why = f"{strange[0]} MHz, which this device does not have"
            self._say(f"the energy server's schedule has {why}: the device's own clock is used; give it this plan")
        return None


# -- what was played --------------------------------------------------------------------------------------------------


def window_file(directory: str | Path, rank: int) -> Path:
    return Path(directory) / f"energy-{rank}.jsonl"


def window_log(directory: str | Path, rank: int, device: str) -> Callable[[Played], None]:
    """Begins a rank's file; what it returns adds a window."""
    path = window_file(directory, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("", encoding="utf-8")

    def add(played: Played) -> None:
        schedule, energies = played.schedule, played.energies
        facts = {
            "device": device,
            "phase": schedule.phase if schedule is not None else "no server",
            "round": schedule.round if schedule is not None else None,
            "steps": len(played.times),
            "time": sum(played.times) / len(played.times),
            "energy": sum(energies) / len(energies) if energies else None,
            "blocking_power": played.blocking.value if played.blocking is not None else None,
            "planned_time": schedule.time if schedule is not None else None,
            "planned_energy": schedule.energy if schedule is not None else None,
        }
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")

    return add


def read_windows(directory: str | Path, rank: int) -> list[dict[str, Any]]:
    """The windows of a rank so far; a line that is still being written is left out."""
    path = window_file(directory, rank)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
