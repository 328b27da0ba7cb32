"""A job: who has registered, what is played, what was reported, and where its ranks wait for each other. It knows
nothing of HTTP, and of the store only that what it has written is safe.

Rounds are counted from 0. A round begins when every rank has asked for it, so at any moment all ranks play the same
one, and what they report is about it. A rank that has reported asks for the next round; one that has not (it lost its
connection, or was started again) gets the current one once more. A straggler's notice ends a round early.

What changes memory is put into the next commit in the same breath, so the store's order is the order in which things
happened, and reading it back (`restore`) leads to the same state.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

from halocline.energy.client import Seat
from halocline.energy.server.digest import Digest, RoundLog, digest
from halocline.energy.server.instruction_profiler import InstructionProfiler
from halocline.energy.server.limits import Rates
from halocline.energy.server.schedulers import TURN, AllMax, Notice, PointSolution, Roster, Scheduler, Turn
from halocline.energy.server.settings import ServerSettings
from halocline.energy.server.store import Store, StoredJob
from halocline.energy.server.wire import JobInfo, RankInfo, Refusal, Result, Straggler
from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.schedule.generate import generate

_KEPT_ROUNDS = 1024
"""How many of the latest rounds keep their reports, besides those a profile was made of."""


class Gate:
    """Where ranks wait until all of them have come. It opens once: when the last of `size` ranks is there, `decide`
    runs, and then all go through."""

    def __init__(self, size: int, decide: Callable[[], Awaitable[None]]) -> None:
        self._size, self._decide = size, decide
        self._here: Counter[int] = Counter()
        self._left: dict[int, float] = {}
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.deciding: asyncio.Task[None] | None = None

    @property
    def failed(self) -> bool:
        """Whether `decide` raised; whoever comes later needs another gate."""
        return self._opened.done() and self._opened.exception() is not None

    def seen(self, rank: int, seconds: float) -> bool:
        """Whether a rank waits here or did not long ago. Ranks give up one by one: none is missing for that."""
        return rank in self._here or time.monotonic() - self._left.get(rank, -1e9) < seconds

    async def wait(self, rank: int, timeout: float) -> bool:
        """Whether the gate opened in time. Raises what `decide` raised, to everyone who waits."""
        self._here[rank] += 1  # a rank that lost its connection and asks again is here twice for a while
        try:
            if len(self._here) == self._size and self.deciding is None:
                self.deciding = asyncio.get_running_loop().create_task(self._run())
            await asyncio.wait({self._opened}, timeout=timeout)
            return self._opened.done() and self._opened.result() is None
        finally:
            self._left[rank] = time.monotonic()
            self._here[rank] -= 1
            if not self._here[rank]:
                del self._here[rank]

    async def _run(self) -> None:
        try:
            await self._decide()
        except Exception as error:
            self._opened.set_exception(error)
            self._opened.exception()  # it may be that nobody waits any more
        else:
            self._opened.set_result(None)


def make_scheduler(name: str, roster: Roster, settings: ServerSettings) -> Scheduler:
    """The scheduler of a job, before anything has been played."""
    if name == "all-max":
        return AllMax(roster)
    return PointSolution(roster, settings.plans) if name == "point-solution" else InstructionProfiler(roster, settings)


class Job:
    """One training job."""

    def __init__(
        self, name: str, info: JobInfo, plan: Plan, created: float, store: Store, settings: ServerSettings
    ) -> None:
        self.name, self.info, self.plan, self.created = name, info, plan, created
        self.touched = time.time()
        self.scheduler_name = info.scheduler or settings.scheduler
        self.scheduler: Scheduler | None = None
        self.ranks: dict[int, RankInfo] = {}
        self.round = -1
        self.turn: Turn | None = None
        self.notice: Notice | None = None
        self.reports = 0
        self.measured = RoundLog(plan)
        self.solve_seconds = 0.0
        self._layout = Layout(plan)
        self.world_size = self._layout.world_size
        self._store, self._settings = store, settings
        self._rates = Rates(settings.rank_rate)
        self._seats: dict[Seat, int] = {}
        self._stages: dict[int, tuple[int, ...]] = {}
        """Of each rank, the stages it holds."""
        self._digests: dict[int, list[Digest]] = {}
        """Of the current round, by rank."""
        self._shas: dict[int, set[str]] = {}
        self._ended_early = False
        self._gate: Gate | None = None
        self._solving: asyncio.Task[None] | None = None

    # -- ranks ---------------------------------------------------------------------------------------------------

    async def register(self, info: RankInfo) -> None:
        """A rank announces itself; the same announcement again changes nothing."""
        self._throttle(info.rank)
        self._require_inside(info.rank)
        known = self.ranks.get(info.rank)
        if known is not None:
            if known != info:
                raise Refusal(409, f"rank {info.rank} is registered with other data: start a new job, or send the same")
            return
        seat = self._seat(info)
        if seat in self._seats:
            raise Refusal(
                409,
                f"rank {info.rank} sits at pp_rank {seat.place}, dp_rank {seat.replica}, tp_rank {seat.member} where "
                f"rank {self._seats[seat]} sits: give every rank its own",
            )
        self._add(info, seat)
        await self._store.add_rank(self.name, info.rank, info.model_dump_json())

    def _add(self, info: RankInfo, seat: Seat) -> None:
        self.ranks[info.rank] = info
        self._seats[seat] = info.rank
        roles = self._layout.roles(seat.local_rank(self.plan))
        self._stages[info.rank] = tuple(sorted({role.stage for role in roles}))

    def _seat(self, info: RankInfo) -> Seat:
        seat = Seat(info.dp_rank, info.pp_rank, info.tp_rank)
        degrees = {"dp_rank": (seat.replica, self.plan.replicas), "pp_rank": (seat.place, self.plan.places)}
        for name, (value, degree) in degrees.items():
            if value >= degree:
                raise Refusal(422, f"{name} {value} of rank {info.rank} is not below the job's {degree}")
        team = self.plan.stages[seat.place].team_size
        if seat.member >= team:
            raise Refusal(422, f"tp_rank {seat.member} of rank {info.rank} is not below its stage's {team}")
        return seat

    def _require_inside(self, rank: int) -> None:
        if rank >= self.world_size:
            raise Refusal(422, f"rank {rank} is not below the job's world_size {self.world_size}")

    def _require_registered(self, rank: int) -> None:
        self._require_inside(rank)
        if rank not in self.ranks:
            raise Refusal(409, f"rank {rank} is not registered: POST /register_rank/{self.name} first")

    def _throttle(self, rank: int) -> None:
        wait = self._rates.wait(rank)
        if wait:
            raise Refusal(429, f"rank {rank} asks more than {self._rates.rate:g} times a second: wait {wait:.2f} s")

    @property
    def phase(self) -> str:
        """What the job is doing, in a word."""
        return self.scheduler.phase if self.scheduler is not None else "waiting"

    @property
    def missing(self) -> Iterator[int]:
        """Ranks that have not registered."""
        return (rank for rank in range(self.world_size) if rank not in self.ranks)

    # -- schedules -----------------------------------------------------------------------------------------------

    async def schedule(self, rank: int) -> dict[str, Any]:
        """What a rank plays now, or, if it has reported that, next."""
        self._throttle(rank)
        self._require_registered(rank)
        if self.round < 0 or self._ended_early or rank in self._digests:
            await self._next_round(rank)
        assert self.turn is not None and self.scheduler is not None
        round, turn = self.round, self.turn
        if turn.time is not None and self.scheduler.unsolved:
            # After a restart the frontier of the turn's plan is not there again yet.
            await self._solved(self._settings.rank_timeout)
            if self.scheduler.unsolved:
                raise Refusal(408, "the frontier is being computed again after a restart: ask again")
        plan = self.scheduler.played(turn, rank)
        return {
            "rank": rank,
            "frequencies": self.scheduler.frequencies(turn, rank),
            "round": round,
            "phase": turn.phase,
            "time": plan.time if plan and plan.timed else None,
            "energy": plan.energy if plan and plan.timed else None,
        }

    async def _next_round(self, rank: int) -> None:
        if self._gate is None or self._gate.failed:
            self._gate = Gate(self.world_size, self._decide)
        gate = self._gate
        if await gate.wait(rank, self._settings.rank_timeout):
            return
        if gate.deciding:
            raise Refusal(408, f"the next schedule of job {self.name} takes long to decide: ask again")
        raise Refusal(408, self._who_is_missing(gate))

    def _who_is_missing(self, gate: Gate) -> str:
        unregistered = list(self.missing)
        absent = unregistered or [r for r in self.ranks if not gate.seen(r, self._settings.rank_timeout)]
        word = "registered" if unregistered else f"asked for schedule {self.round + 1}"
        names = ", ".join(map(str, sorted(absent)[:8])) + (" and others" if len(absent) > 8 else "")
        who = f"rank {names} has" if len(absent) == 1 else f"ranks {names} have"
        return (
            f"{who} not {word} within {self._settings.rank_timeout:g} s ({len(absent)} of {self.world_size} "
            f"missing): see whether it still runs, then ask again"
        )

    async def _decide(self) -> None:
        """Every rank is here: learn from the round that ends and begin the next."""
        if self.scheduler is None:  # by now every rank has told its frequencies
            self.scheduler = await asyncio.to_thread(self._make_scheduler)
        scheduler = self.scheduler
        if self.turn is not None:
            scheduler.observe(self.turn, self._digests)
        # What was observed must not be observed again if the rest fails and ranks ask once more.
        self._digests, self._shas = {}, {}
        await self._solved(self._settings.solve_wait)
        turn = scheduler.turn()
        # Finding a plan takes a while the first time: not while others wait for an answer.
        await asyncio.to_thread(lambda: [scheduler.played(turn, rank) for rank in self.ranks])
        self._begin(self.round + 1, turn)
        await self._store.add_round(self.name, self.round, TURN.dump_json(turn).decode())
        if self.round % 64 == 0 and self.round > _KEPT_ROUNDS:
            await self._store.forget_reports(self.name, self.round - _KEPT_ROUNDS)

    def _begin(self, round: int, turn: Turn) -> None:
        self.round, self.turn = round, turn
        self.touched = time.time()
        self._digests, self._shas = {}, {}
        self._ended_early = False
        self._gate = None
        self.measured.begin(round, turn.phase)

    def _make_scheduler(self) -> Scheduler:
        ranks = sorted(self.ranks.values(), key=lambda info: info.rank)
        roster = Roster(
            schedule=generate(self.plan),
            seats={rank: seat for seat, rank in self._seats.items()},
            available={info.rank: tuple(sorted(set(info.available_frequencies), reverse=True)) for info in ranks},
            device=self.info.device or "",
            blocking_power=self.info.blocking_power,
        )
        sweep = self.info.sweep
        settings = self._settings if sweep is None else replace(self._settings, **sweep.model_dump())
        try:
            made = make_scheduler(self.scheduler_name, roster, settings)
        except ValueError as error:
            raise Refusal(409, str(error)) from error
        made.notify(self.notice)
        return made

    # -- the frontier --------------------------------------------------------------------------------------------

    async def _solved(self, wait: float) -> None:
        """Lets the scheduler do its long work, and waits for it so many seconds."""
        scheduler = self.scheduler
        if scheduler is None or not scheduler.unsolved:
            return
        if self._solving is None or self._solving.done():
            self._solving = asyncio.get_running_loop().create_task(self._solve(scheduler))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._solving), None if wait == float("inf") else wait)

    async def _solve(self, scheduler: Scheduler) -> None:
        start = time.perf_counter()
        await asyncio.to_thread(scheduler.solve)
        self.solve_seconds += time.perf_counter() - start

    async def resume(self) -> None:
        """After a restart: the frontier that was deployed, again."""
        if self.turn is not None and self.turn.time is not None:
            await self._solved(wait=float("inf"))

    # -- reports and notices -------------------------------------------------------------------------------------

    async def report(self, result: Result, body: bytes) -> None:
        """What a rank measured in the current round; before the first it is kept, and nothing follows from it."""
        self._throttle(result.rank)
        self._require_registered(result.rank)
        rank, sha = result.rank, hashlib.sha256(body).hexdigest()
        if result.round is not None:
            if result.round != self.round:
                raise Refusal(
                    409, f"round {result.round} is not the round that is played, {self.round}: ask for a schedule"
                )
            if rank in self._shas:
                if sha in self._shas[rank]:
                    return
                raise Refusal(
                    409, f"rank {rank} has reported round {self.round} with other numbers: report a round once"
                )
        found = digest(result, self._stages[rank])
        if self.scheduler is not None and self.round >= 0:
            self.scheduler.check(rank, found)
        self._learn(rank, sha, found)
        await self._store.add_report(self.name, self.round, rank, sha, found.to_text(), body.decode())

    def _learn(self, rank: int, sha: str, found: Digest) -> None:
        self.reports += 1
        self.touched = time.time()
        if self.round < 0:
            return
        self._digests.setdefault(rank, []).append(found)
        self._shas.setdefault(rank, set()).add(sha)
        self.measured.add(rank, found)

    async def straggler(self, message: Straggler) -> dict[str, Any]:
        """Takes notice of a straggler, or that it is over; the next schedule of every rank follows from it."""
        if self.scheduler_name == "all-max":
            raise Refusal(
                409,
                "the job's scheduler is all-max, which has one plan only: use instruction-profiler or point-solution",
            )
        notice = self._notice(message)
        self._take(notice)
        await self._store.add_notice(self.name, self.round, message.model_dump_json())
        solution = self.scheduler.solution if self.scheduler else None
        return {
            "job": self.name,
            "factor": message.factor,
            "rank": message.rank,
            "dp_rank": notice.replica if notice else None,
            "time": solution.time_min * message.factor or None if solution else None,
            "applies": "next schedule" if solution else "as soon as the frontier is known",
        }

    def _notice(self, message: Straggler) -> Notice | None:
        replica = message.dp_rank
        if message.rank is not None:
            self._require_registered(message.rank)
            mine = self.ranks[message.rank].dp_rank
            if replica is not None and replica != mine:
                raise Refusal(422, f"rank {message.rank} is in dp_rank {mine}, not {replica}: send one of the two")
            replica = mine
        if replica is not None and replica >= self.plan.replicas:
            raise Refusal(422, f"dp_rank {replica} is not below the job's {self.plan.replicas}")
        return None if message.factor == 1 else Notice(message.factor, message.rank, replica)

    def _take(self, notice: Notice | None) -> None:
        self.notice = notice
        self._ended_early = self.round >= 0
        if self.scheduler is not None:
            self.scheduler.notify(notice)

    # -- after a restart -----------------------------------------------------------------------------------------

    def restore(self, stored: StoredJob) -> None:
        """Brings a new job to where the stored one was. Nothing waits here; a frontier is solved when it is needed."""
        for body in stored.ranks.values():
            info = RankInfo.model_validate_json(body)
            self._add(info, self._seat(info))
        if stored.rounds:
            self.scheduler = self._make_scheduler()
        notices = iter([*stored.notices, (len(stored.rounds), "")])
        at, text = next(notices)
        for round in range(-1, len(stored.rounds)):
            if round >= 0:
                assert self.scheduler is not None
                if self.turn is not None:
                    self.scheduler.observe(self.turn, self._digests)
                self._begin(round, TURN.validate_json(stored.rounds[round]))
            for rank, sha, kept in stored.reports.get(round, ()):
                self._learn(rank, sha, Digest.from_text(kept))
            while at == round:
                self._take(self._notice(Straggler.model_validate_json(text)))
                at, text = next(notices)
