"""The store: everything a server has acknowledged, in one sqlite file, so that kill -9 loses none of it. It keeps texts
under keys and knows nothing of what they mean.

A commit waits for the disk (WAL, synchronous=FULL), which takes milliseconds; so whatever arrives during one commit
goes into the next one together, and each request is answered when the commit it is in has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (job TEXT PRIMARY KEY, created REAL NOT NULL, touched REAL NOT NULL,
    body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ranks (job TEXT NOT NULL, rank INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (job, rank))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rounds (job TEXT NOT NULL, round INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (job, round)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reports (id INTEGER PRIMARY KEY, job TEXT NOT NULL, round INTEGER NOT NULL,
    rank INTEGER NOT NULL, sha TEXT NOT NULL, digest TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS reports_of_job ON reports (job, round);
CREATE TABLE IF NOT EXISTS notices (id INTEGER PRIMARY KEY, job TEXT NOT NULL, round INTEGER NOT NULL,
    body TEXT NOT NULL);
"""
_PER_JOB = ("ranks", "rounds", "reports", "notices", "jobs")


class StoreFailed(Exception):
    """The disk did not take it; nothing of it has been acknowledged."""


@dataclass
class StoredJob:
    """A job as it was kept; texts are as they were given."""

    job: str
    created: float
    body: str
    ranks: dict[int, str] = field(default_factory=dict)
    rounds: list[str] = field(default_factory=list)
    reports: dict[int, list[tuple[int, str, str]]] = field(default_factory=lambda: defaultdict(list))
    """Round -> (rank, sha, digest) of each report, in order."""
    notices: list[tuple[int, str]] = field(default_factory=list)
    """(the round in which it came, text)."""


_Write = tuple[str, tuple[object, ...], "asyncio.Future[None]"]


class Store:
    """One open file. Only one process may have it open."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.commits = 0
        self.commit_seconds = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._pending: list[_Write] = []
        self._flushing: asyncio.Task[None] | None = None
        self._failure: StoreFailed | None = None
        with self._readable(), contextlib.ExitStack() as undo:
            self._database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
            undo.callback(self._database.close)
            # Two servers on one file would each answer for half of the jobs.
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("BEGIN IMMEDIATE")
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise ValueError(
                    f"{path} is of version {version} and this server reads {_VERSION}: give another --data"
                )
            for statement in _TABLES.split(";"):
                self._database.execute(statement)
            self._database.execute(f"PRAGMA user_version = {_VERSION}")
            self._database.execute("COMMIT")
            undo.pop_all()

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """What is wrong with the file is told to who gave it."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            locked = "locked" in str(error)
            fix = "another server has it: stop that one, or give another --data" if locked else "give another --data"
            raise ValueError(f"{self._path} cannot be used ({error}): {fix}") from error

    # -- writing -------------------------------------------------------------------------------------------------

    async def add_job(self, job: str, body: str) -> None:
        now = time.time()
        await self._start("INSERT INTO jobs VALUES (?, ?, ?, ?)", job, now, now, body)

    async def add_rank(self, job: str, rank: int, body: str) -> None:
        await self._start("INSERT INTO ranks VALUES (?, ?, ?)", job, rank, body)

    async def add_round(self, job: str, round: int, body: str) -> None:
        self._start("UPDATE jobs SET touched = ? WHERE job = ?", time.time(), job)
        await self._start("INSERT INTO rounds VALUES (?, ?, ?)", job, round, body)

    async def add_report(self, job: str, round: int, rank: int, sha: str, digest: str, body: str) -> None:
        await self._start("INSERT INTO reports VALUES (NULL, ?, ?, ?, ?, ?, ?)", job, round, rank, sha, digest, body)

    async def add_notice(self, job: str, round: int, body: str) -> None:
        await self._start("INSERT INTO notices VALUES (NULL, ?, ?, ?)", job, round, body)

    async def forget(self, job: str) -> None:
        await asyncio.gather(*[self._start(f"DELETE FROM {table} WHERE job = ?", job) for table in _PER_JOB])

    async def forget_reports(self, job: str, before: int) -> None:
        """Drops the reports of rounds long over, but for those a profile was made of."""
        await self._start(
            "DELETE FROM reports WHERE job = ? AND round < ? AND round > (SELECT COALESCE(MAX(round), -1) "
            "FROM rounds WHERE job = ? AND json_extract(body, '$.clocks') IS NOT NULL)",
            job,
            before,
            job,
        )

    def _start(self, statement: str, *values: object) -> asyncio.Future[None]:
        """Puts a statement into the next commit; what it returns is done when that has ended."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        # Not everybody waits for every statement; an error nobody asks for is told by the one that is waited for.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._pending.append((statement, values, done))
        if self._flushing is None or self._flushing.done():
            self._flushing = loop.create_task(self._flush())
        return done

    async def _flush(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                # After a failure memory is ahead of the disk, so nothing is acknowledged until a restart.
                if self._failure is None:
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, batch)
            except Exception as error:  # whatever it is, those who wait are told
                self._failure = StoreFailed(f"the store cannot be written ({error}): make room and start it again")
            for _, _, done in batch:
                if done.done():
                    continue
                if self._failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(self._failure)

    def _commit(self, batch: list[_Write]) -> None:
        start = time.perf_counter()
        self._database.execute("BEGIN")
        try:
            for statement, values, _ in batch:
                self._database.execute(statement, values)
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        self.commits += 1
        self.commit_seconds += time.perf_counter() - start

    async def close(self) -> None:
        """Ends after everything that was begun; later writes fail."""
        while self._flushing is not None and not self._flushing.done():
            await self._flushing
        self._thread.shutdown()
        self._database.close()

    # -- reading, before anything is written ---------------------------------------------------------------------

    def forget_before(self, moment: float) -> None:
        """Drops the jobs nobody has touched since."""
        with self._readable():
            self._database.execute("BEGIN")
            for table in _PER_JOB:
                self._database.execute(
                    f"DELETE FROM {table} WHERE job IN (SELECT job FROM jobs WHERE touched < ?)", (moment,)
                )
            self._database.execute("COMMIT")

    def jobs(self) -> list[StoredJob]:
        """Everything that was kept, oldest job first; of reports, what the server works with."""
        select = self._database.execute
        with self._readable():
            found = {
                job: StoredJob(job, created, body)
                for job, created, body in select("SELECT job, created, body FROM jobs ORDER BY created, rowid")
            }
            for job, rank, body in select("SELECT job, rank, body FROM ranks"):
                found[job].ranks[rank] = body
            for job, body in select("SELECT job, body FROM rounds ORDER BY job, round"):
                found[job].rounds.append(body)
            for job, round, rank, sha, kept in select("SELECT job, round, rank, sha, digest FROM reports ORDER BY id"):
                found[job].reports[round].append((rank, sha, kept))
            for job, round, body in select("SELECT job, round, body FROM notices ORDER BY id"):
                found[job].notices.append((round, body))
        return list(found.values())
