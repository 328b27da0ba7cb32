"""point-solution: plays plans that were made before. Of several it plays the fastest, and with a straggler the slowest
that still meets it.
"""

from __future__ import annotations

from collections.abc import Sequence

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.server.schedulers.scheduler import PLAYING, GivenPlans, Roster, Scheduler, Turn, computed
from halocline.energy.server.timeline import Draftsman, TimelineBar, nominal_profile


class PointSolution(Scheduler):
    """Plays given plans and learns nothing."""

    phase = PLAYING
    solution: GivenPlans

    def __init__(self, roster: Roster, plans: Sequence[FrequencyPlan]) -> None:
        super().__init__(roster)
        for plan in plans:
            _require_fit(plan, roster)
        self.solution = GivenPlans(plans)

    def turn(self) -> Turn:
        factor = self._notice.factor if self._notice else 1.0
        return Turn(PLAYING, time=self.solution.time_min * factor, notice=self._notice)

    def played(self, turn: Turn, rank: int) -> FrequencyPlan:
        assert turn.time is not None
        return self.solution.plan_at(self.solution.time_min if self._keeps_up(turn, rank) else turn.time)

    def drawn(self, plan: FrequencyPlan) -> list[TimelineBar]:
        """The plans say when they end, and nothing of what is between: by nominal times."""
        rows = self._roster.rows_of(plan)
        known = {frequency for row in rows for _, frequency in row}
        profile = nominal_profile(known, len(self._roster.plan.stages))
        bars = Draftsman(self._roster.schedule, profile).of(rows)
        factor = plan.time / max(bar.end for bar in bars)
        return [bar._replace(start=bar.start * factor, end=bar.end * factor) for bar in bars]


def _require_fit(plan: FrequencyPlan, roster: Roster) -> None:
    rows, places, ranks = plan.frequencies, roster.plan.places, roster.plan.ranks_per_replica
    if len(rows) not in (places, ranks):
        raise ValueError(
            f"the plan of {plan.time:g} s has {len(rows)} rows and the job {places} places and {ranks} ranks in a "
            f"replica: give plans made for this job"
        )
    for local, row in enumerate(rows):
        mine = [kind for kind, _ in computed(row)]
        seat = roster.places.index(local) if len(rows) == places else local
        if mine != [kind for kind, _ in roster.rows[seat]]:
            raise ValueError(
                f"row {local} of the plan of {plan.time:g} s has {len(mine)} instructions that are not the "
                f"{len(roster.rows[seat])} of the job's schedule {roster.plan.schedule} with "
                f"{roster.plan.microbatches} microbatches: give plans made for this job"
            )
