"""The digest of a report: the means the server works with. What a report says of each instruction is sorted by stage
and kind here; the lists themselves stay in the store.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from halocline.energy.server.refusal import Refusal
from halocline.energy.server.wire import Result
from halocline.schedule.instruction import COMPUTE, REDUCE

_KINDS = {*COMPUTE, REDUCE}

Part = tuple[int, str]
"""Stage and kind."""


@dataclass(frozen=True)
class Digest:
    """Means over the iterations of a report."""

    iterations: int
    time: float
    """Seconds of an iteration."""
    energy: float
    """Joules of an iteration, of this rank."""
    times: dict[Part, float]
    """Seconds of one run of an instruction."""
    energies: dict[Part, float]
    """Joules of one run of an instruction."""
    busy: float
    """Seconds of an iteration inside the computations that have both."""
    spent: float
    """Joules of an iteration inside the computations that have both."""

    def to_text(self) -> str:
        tables = [[[*part, value] for part, value in table.items()] for table in (self.times, self.energies)]
        return json.dumps([self.iterations, self.time, self.energy, *tables, self.busy, self.spent])

    @classmethod
    def from_text(cls, text: str) -> Digest:
        iterations, time, energy, times, energies, busy, spent = json.loads(text)
        tables = [{(stage, kind): value for stage, kind, value in table} for table in (times, energies)]
        return cls(iterations, time, energy, tables[0], tables[1], busy, spent)


def digest(result: Result, stages: Sequence[int]) -> Digest:
    """The digest of a result of a rank that holds `stages`."""
    count = len(result.iter_time)
    times = _parts("time_breakdown", result.time_breakdown or {}, stages, count)
    energies = _parts("energy_breakdown", result.energy_breakdown or {}, stages, count)
    # Reductions run beside the computation, so they are no part of what fills an iteration.
    both = {part for part in times.keys() & energies.keys() if part[1] != REDUCE}
    return Digest(
        iterations=count,
        time=sum(result.iter_time) / count,
        energy=sum(result.iter_energy) / count,
        times={part: total / runs for part, (total, runs) in times.items()},
        energies={part: total / runs for part, (total, runs) in energies.items()},
        busy=sum(times[part][0] for part in both) / count,
        spent=sum(energies[part][0] for part in both) / count,
    )


def _parts(
    name: str, table: dict[str, list[list[float]]], stages: Sequence[int], iterations: int
) -> dict[Part, tuple[float, int]]:
    """Stage and kind -> the sum and how many numbers. Instructions that take no frequency (loading a batch, say) are
    left out."""
    found: dict[Part, tuple[float, int]] = {}
    for key, rows in table.items():
        kind, _, place = key.replace("_", "-").partition(" ")
        if kind not in _KINDS:
            continue
        part = (_stage(name, key, place, stages), kind)
        if part in found:
            raise Refusal(422, f"{name} tells {kind} of stage {part[0]} twice: send it once, as {kind!r}")
        if len(rows) != iterations:
            raise Refusal(
                422, f"{name}.{key[:40]} has {len(rows)} iterations and iter_time {iterations}: send as many of both"
            )
        runs = sum(map(len, rows))
        if runs:
            found[part] = (sum(map(sum, rows)), runs)
    return found


def _stage(name: str, key: str, place: str, stages: Sequence[int]) -> int:
    if not place:
        if len(stages) > 1:
            raise Refusal(
                422, f"{name}.{key[:40]} does not say which of this rank's stages {list(stages)}: write '{key[:40]} s0'"
            )
        return stages[0]
    number = place.removeprefix("s")
    if not number.isdecimal() or len(number) > 9 or int(number) not in stages:
        raise Refusal(422, f"{name}.{key[:40]} is about a stage this rank does not hold: it holds {list(stages)}")
    return int(number)
