"""instruction-profiler: profiles a job while it trains, solves for its frontier, and deploys it, without a restart.

    profiling   every stage descends from its highest frequency until energy no longer falls (see sweep)
    solving     the frontier of what was measured; ranks wait a little, then go on at their highest frequency
    deployed    the fastest plan, and with a straggler the slowest that still meets it (see `frontier.ease`)

Where the frontier cannot be had (failed), ranks stay at their highest frequency and the reason is told.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping, Sequence

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import Frontier, ease, solve
from halocline.energy.profile.attribution import Measurement
from halocline.energy.profile.sweep import Report, Sweep
from halocline.energy.profile.table import Estimate, ProfileTable, Row
from halocline.energy.server.digest import Digest
from halocline.energy.server.schedulers import (
    DEPLOYED,
    FAILED,
    PROFILING,
    SOLVING,
    Frequencies,
    Notice,
    Roster,
    Scheduler,
    Turn,
)
from halocline.energy.server.settings import ServerSettings
from halocline.energy.server.timeline import TimelineBar, timeline
from halocline.energy.server.wire import Refusal

_LOG = logging.getLogger("halocline.energy.server")


class InstructionProfiler(Scheduler):
    """Learns from every turn until it has a frontier."""

    solution: Frontier | None = None

    def __init__(self, roster: Roster, settings: ServerSettings) -> None:
        super().__init__(roster)
        self.phase = PROFILING
        self._sweep = Sweep(
            [_common(roster, stage) for stage in range(len(roster.members))],
            lowest=settings.lowest_frequency,
            stride=settings.stride,
            patience=settings.patience,
        )
        self._idle_time = self._idle_energy = 0.0
        self._eased: dict[Notice, FrequencyPlan | None] = {}
        """For a notice that names a rank, the plan of the straggler's own replica; None where there is none better."""

    @property
    def blocking_power(self) -> float:
        """Watts of a rank that waits: as told, or what iterations took outside of all instructions."""
        if self._roster.blocking_power is not None:
            return self._roster.blocking_power
        return self._idle_energy / self._idle_time if self._idle_time > 0 else 0.0

    @property
    def profile(self) -> ProfileTable | None:
        """What has been measured so far; None before every stage has."""
        try:
            rows = (Row(*key, time.value, energy.value) for key, (time, energy) in sorted(self._sweep.found.items()))
            return ProfileTable(tuple(rows), note=self._roster.device)
        except ValueError:
            return None

    # -- learning ------------------------------------------------------------------------------------------------

    def check(self, rank: int, digest: Digest) -> None:
        if self.phase != PROFILING:
            return
        row = self._roster.rows[self._roster.local_rank(rank)]
        for stage, kind in sorted({(stage, kind) for kind, stage in row}):
            for name, table in (("time_breakdown", digest.times), ("energy_breakdown", digest.energies)):
                if (stage, kind) not in table:
                    raise Refusal(
                        422,
                        f"{name} has no {kind} of stage {stage}, which is being profiled: report it, or let the job "
                        f"use the scheduler all-max",
                    )
            if digest.times[stage, kind] <= 0:
                raise Refusal(422, f"{kind} of stage {stage} takes 0 s: measure it with a finer clock")

    def observe(self, turn: Turn, reports: Mapping[int, Sequence[Digest]]) -> None:
        if turn.phase != PROFILING or turn.clocks is None:
            return
        for digest in (digest for found in reports.values() for digest in found):
            self._idle_time += max(0.0, digest.time - digest.busy)
            self._idle_energy += max(0.0, digest.energy - digest.spent)
        self._sweep.blocking = Estimate(self.blocking_power, 0.0)
        if turn.clocks == self._sweep.clocks:
            self._sweep.saw([_report(digest) for found in reports.values() for digest in found])
        if self._sweep.done:
            self.phase = SOLVING

    # -- solving -------------------------------------------------------------------------------------------------

    @property
    def unsolved(self) -> bool:
        notice = self._notice
        known = notice is None or notice.rank is None or notice in self._eased
        return self.phase == SOLVING or (self.phase == DEPLOYED and not known)

    def solve(self) -> None:
        profile = self.profile
        assert profile is not None
        if self.phase == SOLVING:
            try:
                self.solution = solve(self._roster.schedule, profile, self.blocking_power)
                # All ranks ask for the same few plans, and each takes a while to round to frequencies.
                self._plan_at = functools.lru_cache(64)(self.solution.plan_at)
                self.phase = DEPLOYED
            except ValueError as error:
                self.phase, self.reason = FAILED, " ".join(str(error).split())
            except Exception:
                # Training must go on; what went wrong is for the server's log.
                _LOG.exception("the frontier could not be computed")
                self.phase, self.reason = FAILED, "the frontier could not be computed: see the server's log"
        notice = self._notice
        if notice is not None and notice.rank is not None and self.solution is not None:
            self._eased[notice] = None
            stages = self._roster.stages_of(notice.rank)
            goal = self.solution.time_min * notice.factor
            with contextlib.suppress(ValueError):
                self._eased[notice] = ease(self._roster.schedule, profile, self.blocking_power, stages, goal)

    # -- playing -------------------------------------------------------------------------------------------------

    def turn(self) -> Turn:
        if self.phase == PROFILING:
            return Turn(PROFILING, clocks=self._sweep.clocks)
        if self.phase != DEPLOYED:
            return Turn(self.phase)
        assert self.solution is not None
        eased = self._notice is not None and self._eased.get(self._notice) is not None
        return Turn(DEPLOYED, time=self.solution.time_min * self._factor, notice=self._notice, eased=eased)

    def frequencies(self, turn: Turn, rank: int) -> Frequencies:
        if turn.clocks is not None:
            return [(kind, turn.clocks[stage]) for kind, stage in self._roster.rows[self._roster.local_rank(rank)]]
        return super().frequencies(turn, rank)

    def played(self, turn: Turn, rank: int) -> FrequencyPlan | None:
        notice = turn.notice
        if turn.eased and notice is not None and notice.replica == self._roster.seats[rank].replica:
            own = self._eased.get(notice)
            if own is not None:
                return own
        return super().played(turn, rank)

    def drawn(self, plan: FrequencyPlan) -> list[TimelineBar]:
        assert self.solution is not None
        pricing = self.solution.pricing
        return timeline(pricing.graph, pricing.menu, self._roster.rows_of(plan))


def _common(roster: Roster, stage: int) -> list[int]:
    """What all ranks of a stage can run at, highest first: they run in lockstep."""
    ranks = roster.members[stage]
    shared = set.intersection(*(set(roster.available[rank]) for rank in ranks))
    if not shared:
        raise ValueError(
            f"ranks {', '.join(map(str, ranks[:8]))} of stage {stage} have no frequency in common: give a stage "
            f"devices of one kind"
        )
    return sorted(shared, reverse=True)


def _report(digest: Digest) -> Report:
    return Report(
        [
            Measurement(*part, None, Estimate(time, 0.0), Estimate(digest.energies[part], 0.0))
            for part, time in digest.times.items()
            if part in digest.energies
        ]
    )
