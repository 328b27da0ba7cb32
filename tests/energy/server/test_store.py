"""What was acknowledged is kept: through kill -9, one server at a time, and never half."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from halocline.energy.server.settings import ServerSettings
from halocline.energy.server.store import Store, StoreFailed
from harness import COMMAND
from harness.serving import Near, Own

JOB = {"pp_degree": 8, "dp_degree": 1, "tp_degree": 1, "world_size": 8}


def test_kill_9_in_the_middle_loses_nothing_acknowledged(own: Callable[..., Own]) -> None:
    server = own("--rank-rate", "100000", "--rate", "100000")
    _, job = server.ask("POST", "/register_job", JOB)
    for rank in range(8):
        seat = {"rank": rank, "dp_rank": 0, "pp_rank": rank, "tp_rank": 0}
        server.ask("POST", f"/register_rank/{job}", {**seat, "available_frequencies": [1410]})
    acknowledged = [0] * 8
    begun = threading.Event()

    def flood(rank: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = json.dumps({"rank": rank, "iter_time": [1.0], "iter_energy": [2.0]})
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:  # until the server is gone
                connection.request("POST", f"/result/{job}", body)
                reply = connection.getresponse()
                reply.read()
                assert reply.status == 200
                acknowledged[rank] += 1
                if sum(acknowledged) > 100:
                    begun.set()
        connection.close()

    # Daemons, so that a test that fails here does not keep them asking for ever.
    threads = [threading.Thread(target=flood, args=(rank,), daemon=True) for rank in range(8)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    server.kill()
    for thread in threads:
        thread.join()
    total = sum(acknowledged)
    kept = own().ask("GET", f"/jobs/{job}")[1]
    assert kept["registered"] == 8
    # What was on its way to being acknowledged may be there too: one of each rank at most.
    assert total <= kept["reports"] <= total + 8


def test_two_servers_do_not_share_a_file(near: Callable[..., Near], tmp_path: Path) -> None:
    near()
    command = [*COMMAND, "energy", "serve", "--port", "0", "--data", str(tmp_path / "0.sqlite")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 2 and "another server has it" in second.stderr
    assert second.stderr.count("\n") == 1


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "x.sqlite")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(ValueError, match="version 99 and this server reads 1"):
        Store(tmp_path / "x.sqlite")


def test_what_is_no_file_of_ours_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unable to open database file"):
        Store(tmp_path)
    damaged = tmp_path / "x.sqlite"

    async def fill() -> None:
        store = Store(damaged)
        await asyncio.gather(*(store.add_job(f"job {number}", "x" * 2000) for number in range(20)))
        await store.close()

    asyncio.run(fill())
    content = bytearray(damaged.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)  # all but what opening it reads
    damaged.write_bytes(content)
    store = Store(damaged)
    with pytest.raises(ValueError, match=r"x.sqlite cannot be used .*malformed.*: give another --data"):
        store.jobs()
    asyncio.run(store.close())


def test_statements_of_one_moment_share_a_commit(tmp_path: Path) -> None:
    async def run() -> tuple[int, int]:
        store = Store(tmp_path / "x.sqlite")
        await store.add_job("job", "{}")
        before = store.commits
        await asyncio.gather(*(store.add_report("job", 0, rank, "sha", "[]", "{}") for rank in range(100)))
        commits = store.commits - before
        await store.close()
        return commits, before

    commits, before = asyncio.run(run())
    assert before == 1 and 1 <= commits <= 2
    with contextlib.closing(sqlite3.connect(tmp_path / "x.sqlite")) as database:
        assert database.execute("SELECT COUNT(*) FROM reports").fetchone() == (100,)


def test_after_a_failure_nothing_is_acknowledged(tmp_path: Path) -> None:
    """Memory would be ahead of the disk from then on."""

    async def run() -> None:
        store = Store(tmp_path / "x.sqlite")
        await store.add_job("job", "{}")
        with pytest.raises(StoreFailed, match="UNIQUE"):
            await store.add_job("job", "{}")
        with pytest.raises(StoreFailed, match="start it again"):
            await store.add_job("another", "{}")
        await store.close()

    asyncio.run(run())


def test_no_error_leaves_those_who_wait_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning of Python 3.12's sqlite3 that was an error ended the commits, and nobody was told."""

    def warned(self: Store, batch: object) -> None:
        raise DeprecationWarning("not an error of sqlite3")

    async def run() -> None:
        store = Store(tmp_path / "x.sqlite")
        monkeypatch.setattr(Store, "_commit", warned)
        with pytest.raises(StoreFailed, match="not an error of sqlite3"):
            await asyncio.wait_for(store.add_job("job", "{}"), 60)
        await store.close()

    asyncio.run(run())


def test_a_store_that_fails_is_told_in_one_line(near: Callable[..., Near], monkeypatch: pytest.MonkeyPatch) -> None:
    server = near()

    def full(self: Store, batch: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Store, "_commit", full)
    status, body = server.ask("POST", "/register_job", JOB)
    assert status == 503 and "disk is full" in body["detail"]
    assert server.ask("GET", "/health")[0] == 200


def test_jobs_nobody_touches_are_forgotten(tmp_path: Path) -> None:
    data = tmp_path / "x.sqlite"
    server = Near(data, ServerSettings())
    names = [server.ask("POST", "/register_job", JOB)[1] for _ in range(2)]
    server.stop()
    with contextlib.closing(sqlite3.connect(data)) as database:
        database.execute("UPDATE jobs SET touched = touched - 40 * 86400 WHERE job = ?", (names[0],))
        database.commit()
    server = Near(data, ServerSettings())
    assert [job["job"] for job in server.ask("GET", "/jobs")[1]] == names[1:]
    server.stop()


def test_reports_of_long_ago_are_dropped_but_not_those_of_the_profile(tmp_path: Path) -> None:
    async def run() -> list[int]:
        store = Store(tmp_path / "x.sqlite")
        await store.add_job("job", "{}")
        for round in range(6):
            await store.add_round("job", round, json.dumps({"clocks": [1410] if round < 2 else None}))
            await store.add_report("job", round, 0, "sha", "[]", "{}")
        await store.forget_reports("job", before=4)
        (found,) = store.jobs()
        await store.close()
        return sorted(found.reports)

    assert asyncio.run(run()) == [0, 1, 4, 5]
