"""What was measured, round by round: the time of an iteration and the energy of all ranks, as the ranks reported them.
Savings that are told come from here and from nothing predicted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from halocline.energy.server.digest import Digest
from halocline.plan.plan import Plan

_KEPT = 256


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
        return {
            "round": last.round,
            "energy": 1 - last.energy / first.energy,
            "slowdown": last.time / first.time - 1,
        }
