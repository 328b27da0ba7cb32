"""All jobs of a server: their ids, the plan each one runs, and what the store gives back after a restart."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator

from halocline.energy.client import job_degrees
from halocline.energy.server.job import Job
from halocline.energy.server.settings import ServerSettings, scheduler_named
from halocline.energy.server.store import Store
from halocline.energy.server.wire import LONGEST_PLAN, JobInfo, Refusal, SweepMessage
from halocline.plan.plan import Plan

_MOST_WORK = 1_000_000
"""Ranks of a replica x microbatches x chunks: beyond it a schedule takes minutes and gigabytes, for whoever asks."""
_DAY = 86400.0
_LOG = logging.getLogger("halocline.energy.server")


class Jobs:
    """Every job, in memory and in the store."""

    def __init__(self, store: Store, settings: ServerSettings) -> None:
        self._store, self._settings = store, settings
        self._jobs: dict[str, Job] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(tuple(self._jobs.values()))

    def restore(self) -> None:
        """Everything the store has kept, as if the server had never stopped."""
        self._store.forget_before(time.time() - self._settings.keep_days * _DAY)
        for stored in self._store.jobs():
            try:
                info = JobInfo.model_validate_json(stored.body)
                job = Job(stored.job, info, self._plan(info), stored.created, self._store, self._settings)
                job.restore(stored)
            except (ValueError, Refusal) as error:
                # One job that this server cannot play (plans that are no longer given, say) must not stop the others.
                _LOG.warning("job %s cannot go on: %s", stored.job, " ".join(str(error).split()))
                continue
            self._jobs[job.name] = job

    async def resume(self) -> None:
        """Solves again for the frontiers that were deployed, one after the other."""
        for job in self:
            await job.resume()

    def find(self, name: str) -> Job:
        job = self._jobs.get(name)
        if job is None:
            raise Refusal(404, f"job {name[:80]!r} is not known here: register it with POST /register_job")
        return job

    async def register(self, info: JobInfo) -> str:
        try:
            scheduler = scheduler_named(info.scheduler) if info.scheduler is not None else self._settings.scheduler
            plan = self._plan(info)
        except ValueError as error:
            raise Refusal(422, " ".join(str(error).split())) from error
        if scheduler == "point-solution" and not self._settings.plans:
            raise Refusal(422, "scheduler point-solution has no plans here: start the server with --plans")
        text = plan.to_toml()
        if len(text) > LONGEST_PLAN:
            raise Refusal(
                422, f"the plan takes {len(text)} characters and {LONGEST_PLAN} are the most: use fewer stages"
            )
        # A job goes on as it began, whatever the settings of a server that is started again.
        settings = self._settings
        info = info.model_copy(
            update={
                "plan": text,
                "scheduler": scheduler,
                "blocking_power": settings.blocking_power if info.blocking_power is None else info.blocking_power,
                "sweep": info.sweep
                or SweepMessage(
                    lowest_frequency=settings.lowest_frequency, stride=settings.stride, patience=settings.patience
                ),
            }
        )
        now = time.time()
        # Safe in a path as it is: clients write it there unquoted.
        degrees = f"pp{info.pp_degree}-dp{info.dp_degree}-tp{info.tp_degree}"
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{degrees}-{secrets.token_hex(8)}"
        self._jobs[name] = Job(name, info, plan, now, self._store, self._settings)
        await self._store.add_job(name, info.model_dump_json(exclude_none=True))
        return name

    def _plan(self, info: JobInfo) -> Plan:
        """The job's own plan, or the server's, or one of the job's degrees."""
        settings = self._settings
        if info.plan is not None:
            plan = Plan.from_toml(info.plan)
        elif settings.plan is not None:
            plan = settings.plan
        else:
            plan = Plan.from_flags(
                schedule=settings.schedule,
                split_size=info.pp_degree,
                microbatches=settings.microbatches,
                replicas=info.dp_degree,
                tp=info.tp_degree,
            )
        for name, value in job_degrees(plan).items():
            if getattr(info, name) != value:
                raise ValueError(f"{name} {getattr(info, name)} is not the plan's {value}: send the plan's degrees")
        work = plan.ranks_per_replica * plan.microbatches * plan.chunks
        if work > _MOST_WORK:
            raise ValueError(
                f"{plan.ranks_per_replica} ranks x {plan.microbatches} microbatches x {plan.chunks} chunks = {work} is "
                f"more than {_MOST_WORK}: send a plan with fewer microbatches, a schedule repeats itself"
            )
        return plan

    async def forget_old(self) -> None:
        """Drops the jobs nobody has touched for long; runs for ever."""
        while True:
            await asyncio.sleep(3600)
            before = time.time() - self._settings.keep_days * _DAY
            for job in [job for job in self._jobs.values() if job.touched < before]:
                del self._jobs[job.name]
                await self._store.forget(job.name)
