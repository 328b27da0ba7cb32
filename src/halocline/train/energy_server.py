"""The way of a run's ranks to an energy server: rank 0 announces the job, all ranks announce themselves. Where that
fails it is said once, and tried again when asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from halocline.energy.client import Client, RankClient, ServerGone, ServerRefused
from halocline.plan.plan import Plan
from halocline.runtime.processes.world import World, gathered
from halocline.train.settings import Settings


class Connection:
    """One rank's."""

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
