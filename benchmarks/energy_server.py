"""The energy server under load, on this machine: requests per second and the slowest of a hundred, what kill -9 loses,
registrations at once, and requests that make no sense. Prints one line for each, with what is asked of it.

    python benchmarks/energy_server.py            everything, about a minute
    python benchmarks/energy_server.py load kill  some of: load, kill, jobs, fuzz
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

SERVE = [sys.executable, "-c", "import sys; from halocline.cli import main; sys.exit(main())", "energy", "serve"]
RANKS, REPORTS = 256, 10
FREQUENCIES = list(range(1410, 210, -15))


@dataclass
class Server:
    """A server of its own process, on a file that outlives it."""

    data: Path
    options: tuple[str, ...] = ()
    process: subprocess.Popen[str] = field(init=False)
    port: int = field(init=False)

    def __post_init__(self) -> None:
        command = [*SERVE, "--port", "0", "--data", str(self.data), *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(line.split()[3].rpartition(":")[2])

    @property
    def busy(self) -> float:
        """Seconds of processor it has used. On a machine with other work this says more than the clock."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Connection:
    """One kept connection. Plain sockets: a client library would be slower than what is measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = body or b""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        status = int((await self._reader.readline()).split()[1])
        length = 0
        while (line := await self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, await self._reader.readexactly(length)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def job_body(ranks: int) -> bytes:
    return json.dumps({"pp_degree": 8, "dp_degree": ranks // 8, "tp_degree": 1, "world_size": ranks}).encode()


def rank_body(rank: int) -> bytes:
    seat = {"rank": rank, "pp_rank": rank % 8, "dp_rank": rank // 8, "tp_rank": 0}
    return json.dumps({**seat, "available_frequencies": FREQUENCIES}).encode()


def report_body(rank: int, number: int) -> bytes:
    """Five iterations of eight microbatches."""
    draw = random.Random(rank * 1000 + number)
    rows = [[[draw.uniform(0.01, 0.02) for _ in range(8)] for _ in range(5)] for _ in range(4)]
    names = ("forward", "backward")
    return json.dumps(
        {
            "rank": rank,
            "iter_time": [draw.uniform(0.4, 0.5) for _ in range(5)],
            "iter_energy": [draw.uniform(90, 100) for _ in range(5)],
            "time_breakdown": dict(zip(names, rows[:2])),
            "energy_breakdown": dict(zip(names, rows[2:])),
        }
    ).encode()


async def register(port: int, ranks: int) -> tuple[str, list[Connection]]:
    """A job with all its ranks, each on its own connection."""
    connections = [Connection(port) for _ in range(ranks)]
    status, body = await connections[0].ask("POST", "/register_job", job_body(ranks))
    assert status == 200, body
    job = json.loads(body)

    async def one(rank: int) -> None:
        status, body = await connections[rank].ask("POST", f"/register_rank/{job}", rank_body(rank))
        assert status == 200, body

    await asyncio.gather(*map(one, range(ranks)))
    return job, connections


async def load(folder: Path) -> None:
    """Every rank sends its reports one after the other; all ranks at once."""
    server = Server(folder / "load.sqlite")
    try:
        job, connections = await register(server.port, RANKS)
        bodies = [[report_body(rank, number) for number in range(REPORTS)] for rank in range(RANKS)]
        seconds: list[float] = []

        async def one(rank: int) -> None:
            for body in bodies[rank]:
                start = time.perf_counter()
                status, text = await connections[rank].ask("POST", f"/result/{job}", body)
                seconds.append(time.perf_counter() - start)
                assert status == 200, text

        start, busy = time.perf_counter(), server.busy
        await asyncio.gather(*map(one, range(RANKS)))
        each = (server.busy - busy) / len(seconds)
        rate = len(seconds) / (time.perf_counter() - start)
        seconds.sort()
        tail = seconds[int(0.99 * len(seconds))] * 1e3
        print(
            f"load: {RANKS} ranks x {REPORTS} reports: {rate:,.0f} requests/s (at least 1,000), median "
            f"{statistics.median(seconds) * 1e3:.0f} ms, p99 {tail:.0f} ms (at most 150); "
            f"{each * 1e6:.0f} us of processor each, {1 / each:,.0f} requests/s on a core of its own"
        )
        await rounds(job, connections)
    finally:
        server.kill()


async def rounds(job: str, connections: list[Connection]) -> None:
    """Every rank asks for a schedule, reports, and asks again: each round waits for all."""
    count = 5

    async def one(rank: int) -> None:
        for number in range(count):
            status, text = await connections[rank].ask("GET", f"/schedule/{job}?rank={rank}")
            assert status == 200, text
            status, text = await connections[rank].ask("POST", f"/result/{job}", report_body(rank, number))
            assert status == 200, text

    start = time.perf_counter()
    await asyncio.gather(*map(one, range(len(connections))))
    spent = (time.perf_counter() - start) / count * 1e3
    print(f"load: a round of {len(connections)} ranks (report, wait for all, next schedule): {spent:.0f} ms")


async def kill(folder: Path) -> None:
    """The server is killed in the middle of the load; what it had acknowledged must be there afterwards."""
    server = Server(folder / "kill.sqlite")
    job, connections = await register(server.port, RANKS)
    acknowledged = [0] * RANKS
    total = 0

    async def one(rank: int) -> None:
        nonlocal total
        for number in range(REPORTS):
            try:
                status, _ = await connections[rank].ask("POST", f"/result/{job}", report_body(rank, number))
            except (OSError, asyncio.IncompleteReadError, IndexError):
                return
            assert status == 200
            acknowledged[rank] += 1
            total += 1
            if total == RANKS * REPORTS // 2:
                os.kill(server.process.pid, signal.SIGKILL)

    await asyncio.gather(*map(one, range(RANKS)))
    server.kill()
    again = Server(folder / "kill.sqlite")
    try:
        status, body = await Connection(again.port).ask("GET", f"/jobs/{job}")
        found = json.loads(body)
        assert status == 200 and found["registered"] == RANKS, body
        lost = sum(acknowledged) - found["reports"]
        print(
            f"kill: -9 after {sum(acknowledged)} acknowledged reports: {found['reports']} kept, "
            f"{max(0, lost)} lost (none may be)"
        )
        assert lost <= 0
    finally:
        again.kill()


async def jobs(folder: Path) -> None:
    """A thousand registrations at once, each on its own connection."""
    server = Server(folder / "jobs.sqlite")
    try:
        connections = [Connection(server.port) for _ in range(1000)]
        start = time.perf_counter()
        replies = await asyncio.gather(*(c.ask("POST", "/register_job", job_body(8)) for c in connections))
        spent = time.perf_counter() - start
        names = {json.loads(body) for status, body in replies if status == 200}
        print(f"jobs: 1,000 registrations at once: {len(names)} ids (1,000) in {spent:.1f} s")
        assert len(names) == 1000
    finally:
        server.kill()


async def fuzz(folder: Path) -> None:
    """Ten thousand requests that are wrong in every way a client can be wrong. None may be answered with 5xx."""
    from harness.fuzzed_requests import requests

    server = Server(folder / "fuzz.sqlite", ("--rank-timeout", "0.2", "--rate", "100000", "--rank-rate", "100000"))
    try:
        job, connections = await register(server.port, 8)
        draw = random.Random(0)
        queue = [next_request for next_request in requests(job, draw, 10_000)]
        statuses: dict[int, int] = {}

        async def one(connection: Connection) -> None:
            while queue:
                method, path, body = queue.pop()
                try:
                    status, _ = await connection.ask(method, path, body)
                except (OSError, asyncio.IncompleteReadError, IndexError):
                    connection.close()  # the server closed it, which is an answer too
                    status = 0
                if status in (400, 0):
                    connection.close()
                statuses[status] = statuses.get(status, 0) + 1

        await asyncio.gather(*map(one, connections))
        failed = sum(count for status, count in statuses.items() if status >= 500)
        told = ", ".join(f"{status or 'closed'}: {count}" for status, count in sorted(statuses.items()))
        print(f"fuzz: 10,000 requests: {failed} answered with 5xx (none may be); {told}")
        assert not failed and server.process.poll() is None
    finally:
        server.kill()


def main() -> None:
    parts = {"load": load, "kill": kill, "jobs": jobs, "fuzz": fuzz}
    print(f"machine: {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(parts[name](Path(folder)))


if __name__ == "__main__":
    main()
