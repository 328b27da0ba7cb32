"""all-max: every rank at its highest frequency, for ever. What everything else is measured against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.server.digest import Digest
from halocline.energy.server.schedulers.scheduler import Frequencies, Roster
from halocline.energy.server.schedulers.turn import ALL_MAX, Notice, Turn
from halocline.energy.server.timeline import Timeline


class AllMax:
    """Learns nothing."""

    phase = ALL_MAX
    reason = ""
    solution = None
    unsolved = False

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def check(self, rank: int, digest: Digest) -> None:
        pass

    def observe(self, turn: Turn, reports: Mapping[int, Sequence[Digest]]) -> None:
        pass

    def notify(self, notice: Notice | None) -> None:
        pass

    def solve(self) -> None:
        pass

    def turn(self) -> Turn:
        return Turn(ALL_MAX)

    def frequencies(self, turn: Turn, rank: int) -> Frequencies:
        return self._roster.highest(rank)

    def played(self, turn: Turn, rank: int) -> FrequencyPlan | None:
        return None

    def drawn(self, plan: FrequencyPlan) -> Timeline:
        raise AssertionError("there is no plan to draw")
