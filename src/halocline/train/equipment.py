"""What a run carries for energy: a meter, a clock and the observer that uses them, as the settings ask for it.

--timing-csv           instructions-R.csv and time-energy-R.csv in the run's directory
--energy-server URL    plays what an energy server says, and reports to it
--sweep                goes down the frequencies, writes profile.csv, and then the run is over
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from halocline.energy.client import Client, RankClient, ServerGone, ServerRefused
from halocline.energy.controller import Controller, Player
from halocline.energy.device.clock import GuardedClock
from halocline.energy.device.devices import open_device
from halocline.energy.device.meter import Clock, CounterWatch, Meter
from halocline.energy.profile.attribution import Measurement
from halocline.energy.profile.sweep import Report, Sweep, SweepPlayer
from halocline.energy.profile.table import PROFILE, Estimate, write_profile
from halocline.energy.profile.timing_csv import TimingCsv
from halocline.energy.server_player import ServerPlayer, window_log
from halocline.energy.simulated.device import SimulatedDevice
from halocline.plan.plan import Plan
from halocline.runtime.marks import marks_of
from halocline.runtime.processes.world import World, gathered
from halocline.schedule.events import Marks, Observer, TimeMarks
from halocline.schedule.generate import generate
from halocline.schedule.instruction import Instruction
from halocline.train.settings import Settings


class Equipment:
    """The devices and observers of one rank, and what must be given back in the end."""

    def __init__(
        self, settings: Settings, plan: Plan, world: World, directory: Path, say: Callable[[str], None]
    ) -> None:
        """Every rank makes one. `directory` is the run's."""
        self._settings, self._plan, self._world, self._directory, self._say = settings, plan, world, directory, say
        self.observers: tuple[Observer, ...] = ()
        self.simulated: SimulatedDevice | None = None
        """Both for the engine."""
        self.sweep: Sweep | None = None
        self.profile: str | None = None
        """Where the profile of a sweep has gone."""
        self._controller: Controller | None = None
        if not (settings.energy.timing_csv or settings.energy.energy_server or settings.energy.sweep):
            return
        self._schedule = generate(plan)
        self._device = self._open()
        self._controller = self._control(self._schedule.ranks[world.rank % plan.ranks_per_replica])
        self.simulated = self._device if isinstance(self._device, SimulatedDevice) else None
        self.observers = (self._controller,)

    @property
    def finished(self) -> bool:
        """Whether the run has done what it was for, as every rank knows at the same step."""
        return self.sweep is not None and self.sweep.done

    def close(self) -> None:
        """Give the clock back, and write what was found."""
        if self._controller is not None:
            self._controller.close()
        if self.sweep is not None and self.sweep.found and self._world.rank == 0:
            assert self._device is not None
            target = self._settings.energy.profile or self._directory / PROFILE
            write_profile(target, self.sweep.found, self._device.name, self.sweep.blocking)
            self.profile = str(target)
            whole = "" if self.sweep.done else " so far, for the sweep was cut short"
            self._say(f"{target} has {len(self.sweep.found)} rows{whole}")

    # -- the device ------------------------------------------------------------------------------------------------

    def _open(self) -> Meter | None:
        where = self._world.device
        cuda = where.type == "cuda"
        return open_device(
            self._settings.energy.meter,
            schedule=self._schedule,
            rank=self._world.rank,
            directory=self._directory / "devices",
            gpu=f"GPU-{torch.cuda.get_device_properties(where).uuid}" if cuda else None,
            index=(where.index or 0) if cuda else self._world.rank,
            seed=self._settings.run.seed,
        )

    def _marks(self) -> Marks:
        if isinstance(self._device, SimulatedDevice):
            return TimeMarks(self._device.time)
        return marks_of(self._world.device)

    # -- the observer ----------------------------------------------------------------------------------------------

    def _control(self, row: Sequence[Instruction]) -> Controller:
        settings, device = self._settings, self._device
        name = device.name if device is not None else None
        clock = None
        player: Player | None = None
        if settings.energy.energy_server or settings.energy.sweep:
            clock = GuardedClock(device, self._say) if isinstance(device, Clock) else None
            frequencies: list[int] = clock.frequencies() if clock is not None else []
            player = (
                self._from_server(row, frequencies) if settings.energy.energy_server else self._sweeping(row, clock)
            )
        timing_csv = settings.energy.timing_csv
        listeners = [TimingCsv(self._directory, self._world.rank, meter=name, say=self._say)] if timing_csv else []
        sampler = CounterWatch(device) if device is not None else None
        return Controller(row, self._marks(), sampler=sampler, clock=clock, player=player, listeners=listeners)

    def _from_server(self, row: Sequence[Instruction], frequencies: Sequence[int]) -> ServerPlayer:
        assert self._settings.energy.energy_server is not None
        name = self._device.name if self._device is not None else "unmeasured"
        connection = _Connection(self._settings, self._plan, self._world, frequencies, name, self._say)
        return ServerPlayer(
            connection.open,
            row,
            self._settings.energy.profile_steps,
            available=frequencies,
            warmup=self._settings.energy.profile_warmup,
            settle=self._settle(),
            say=self._say,
            over=window_log(self._directory, self._world.rank, name),
        )

    def _sweeping(self, row: Sequence[Instruction], clock: GuardedClock | None) -> SweepPlayer:
        settings, world = self._settings, self._world
        shared = set.intersection(*map(set, gathered(world, clock.frequencies() if clock is not None else [])))
        self.sweep = Sweep(
            [sorted(shared, reverse=True)] * len(self._plan.stages),
            lowest=settings.energy.lowest_frequency,
            stride=settings.energy.frequency_stride,
        )

        return SweepPlayer(
            self.sweep,
            row,
            settings.energy.profile_steps,
            lambda report: [_read(words) for words in gathered(world, report)],
            warmup=settings.energy.profile_warmup,
            settle=self._settle(),
            stuck=lambda: clock.stuck if clock is not None else None,
        )

    def _settle(self) -> int:
        """Steps at a new frequency that do not count: a real clock takes a while to follow."""
        return 0 if isinstance(self._device, SimulatedDevice) else 1


class _Connection:
    """The way of one rank to an energy server: rank 0 announces the job, all ranks announce themselves. Where that
    fails it is said once, and tried again when asked again."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        world: World,
        frequencies: Sequence[int],
        device: str,
        say: Callable[[str], None],
    ) -> None:
        assert settings.energy.energy_server is not None
        token = (
            Path(settings.energy.energy_token_file).read_text(encoding="utf-8").strip()
            if settings.energy.energy_token_file
            else None
        )
        self._client = Client(settings.energy.energy_server, token=token)
        self._settings, self._plan, self._world, self._device, self._say = settings, plan, world, device, say
        self._frequencies = list(frequencies)
        self._said = False

    def open(self) -> RankClient | None:
        """The rank's client; None where there is no server. Every rank calls this at the same step."""
        job, error = None, ""
        if self._world.rank == 0:
            try:
                job = self._client.register_job(
                    self._plan,
                    device=self._device,
                    blocking_power=self._settings.energy.blocking_power,
                    metadata=self._settings.model.name,
                )
            except (ServerGone, ServerRefused) as failure:
                error = str(failure)
        job = gathered(self._world, job)[0]
        if job is not None:
            try:
                self._client.register_rank(job, self._world.rank, self._plan, self._frequencies or [1])
            except (ServerGone, ServerRefused) as failure:
                error = str(failure)
        errors = [text for text in gathered(self._world, error) if text]
        if errors or job is None:
            if not self._said:
                self._said = True
                self._say(f"{errors[0]}; training goes on at default clocks")
            return None
        self._said = False
        return RankClient(self._client, job, self._world.rank, self._say)


def _read(words: list[Any]) -> Report:
    """A report that has travelled as JSON, which knows lists only."""
    rows, blocking, stuck = words
    return Report(
        [
            Measurement(stage, kind, frequency, Estimate(*time), Estimate(*energy) if energy else None)
            for stage, kind, frequency, time, energy in rows
        ],
        Estimate(*blocking) if blocking else None,
        stuck,
    )
