"""What was reported: the digest of a report, which is the means that the server works with, by stage and kind (the
lists themselves stay in the store), and what was measured round by round. Savings that are told come from here and from
nothing predicted.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from halocline.energy.profile.table import kind_of
from halocline.energy.server.wire import Refusal, Result
from halocline.plan.plan import Plan
from halocline.schedule.instruction import COMPUTE, REDUCE

_KINDS = {*COMPUTE, REDUCE}

_KEPT = 256
"""The latest rounds whose measurements are kept."""

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
        kind, _, place = kind_of(key).partition(" ")
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


@dataclass
class Round:
    """One round's measurements so far."""

    round: int
    phase: str
    ranks: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    """Rank -> seconds and joules of an iteration, and of how many they are the mean."""

    @property
    def time(self) -> float:
        """Seconds of an iteration: of the slowest rank."""
        return max(time for time, _, _ in self.ranks.values())

    @property
    def energy(self) -> float:
        """Joules of an iteration, of all ranks."""
        return sum(energy for _, energy, _ in self.ranks.values())


class RoundLog:
    """The first round, all at the highest frequency, and the latest ones."""

    def __init__(self, plan: Plan) -> None:
        self._world = plan.world_size
        self._first: Round | None = None
        self._latest: deque[Round] = deque(maxlen=_KEPT)

    def begin(self, round: int, phase: str) -> None:
        self._latest.append(Round(round, phase))
        if self._first is None:
            self._first = self._latest[0]

    def add(self, rank: int, digest: Digest) -> None:
        ranks = self._latest[-1].ranks
        time, energy, count = ranks.get(rank, (0.0, 0.0, 0))
        total = count + digest.iterations
        share = digest.iterations / total
        ranks[rank] = (time + (digest.time - time) * share, energy + (digest.energy - energy) * share, total)

    @property
    def whole(self) -> list[Round]:
        """The rounds of which every rank has reported, in order."""
        rounds = [*([self._first] if self._first and self._first not in self._latest else []), *self._latest]
        return [round for round in rounds if len(round.ranks) == self._world]

    def saved(self) -> dict[str, float] | None:
        """The latest round against the first."""
        rounds = self.whole
        if len(rounds) < 2 or not rounds[0].energy or not rounds[0].time:
            return None
        first, last = rounds[0], rounds[-1]
        return {"round": last.round, "energy": 1 - last.energy / first.energy, "slowdown": last.time / first.time - 1}
