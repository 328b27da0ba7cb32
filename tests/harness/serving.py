"""Servers under test, plain requests to them, and ranks that play what they are told on a made-up device."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from halocline.energy.client import Client, RankSchedule, Seat
from halocline.energy.profile.table import ProfileTable, Row
from halocline.energy.server.app import listen, make_app
from halocline.energy.server.settings import ServerSettings
from halocline.plan.plan import Plan
from halocline.schedule.generate import generate
from halocline.schedule.instruction import COMPUTE
from harness import COMMAND

FREQUENCIES = (1400, 1200, 1000, 800, 600, 400)
BLOCKING = 60.0


class Server:
    """Something that answers at a port."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON. Bytes are sent as they are, everything else as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        assert "Traceback" not in text
        return reply.status, json.loads(text) if "json" in reply.headers.get("content-type", "") else text


class Near(Server):
    """In this process, on a thread of its own."""

    def __init__(self, data: Path, settings: ServerSettings) -> None:
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        app: Any = make_app(settings, data)
        config = uvicorn.Config(app, lifespan="on", log_level="error", access_log=False, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._listener = listener
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._listener.close()


class Own(Server):
    """A process of its own, which can be killed."""

    def __init__(self, data: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        command = [*COMMAND, "energy", "serve", "--port", "0", "--data", str(data), *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("energy server on http://127.0.0.1:"), (line, self.process.communicate()[1])
        self.port = int(line.split()[3].rpartition(":")[2])

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def law(stage: int, kind: str, frequency: int) -> tuple[float, float]:
    """Seconds and joules of an instruction: every second stage is slower, and each has a cheapest frequency."""
    length = {"forward": 1.0, "backward": 2.0, "recompute": 1.0, "backward-input": 1.2, "backward-weight": 0.8}[kind]
    seconds = 0.01 * length * (1 + 0.3 * (stage % 2)) * (0.3 + 0.7 * FREQUENCIES[0] / frequency)
    watts = BLOCKING + 80 + 200 * (frequency / FREQUENCIES[0]) ** 3
    return _binary(seconds), _binary(seconds * watts)


def _binary(value: float) -> float:
    """A nearby number of few binary digits, so that means of equal ones are exact and plans can be compared."""
    return round(value * 2**30) / 2**30


def profile(stages: int, frequencies: Sequence[int] = FREQUENCIES, note: str = "simulated") -> ProfileTable:
    """What a whole sweep of the law gives."""
    return ProfileTable(
        tuple(
            Row(stage, kind, frequency, *law(stage, kind, frequency))
            for stage in range(stages)
            for kind in ("backward", "forward")
            for frequency in sorted(frequencies)
        ),
        note,
    )


@dataclass
class Cast:
    """All ranks of a job, played by threads of this process."""

    client: Client
    plan: Plan
    job: str = ""
    pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(self.plan.world_size)
        rows = generate(self.plan).ranks
        self.stages = [[i.stage for i in row if i.kind in COMPUTE] for row in rows]

    def register(self, scheduler: str | None = None, power: float | None = BLOCKING) -> Cast:
        self.job = self.client.register_job(self.plan, device="simulated", blocking_power=power, scheduler=scheduler)
        for rank in range(self.plan.world_size):
            self.client.register_rank(self.job, rank, self.plan, FREQUENCIES)
        return self

    def schedules(self) -> list[RankSchedule]:
        """Every rank asks for a schedule, all at once."""
        return list(self.pool.map(lambda rank: self.client.schedule(self.job, rank), range(self.plan.world_size)))

    def report(self, schedules: Sequence[RankSchedule]) -> None:
        list(self.pool.map(self._report, schedules))

    def _report(self, schedule: RankSchedule) -> None:
        stages = self.stages[Seat.of(self.plan, schedule.rank).local_rank(self.plan)]
        times: dict[str, list[list[float]]] = {}
        energies: dict[str, list[list[float]]] = {}
        several = len(set(stages)) > 1
        for stage, (kind, frequency) in zip(stages, schedule.frequencies):
            name = f"{kind} s{stage}" if several else kind
            seconds, joules = law(stage, kind, frequency)
            times.setdefault(name, [[]])[0].append(seconds)
            energies.setdefault(name, [[]])[0].append(joules)
        busy = sum(sum(rows[0]) for rows in times.values())
        spent = sum(sum(rows[0]) for rows in energies.values())
        whole = max(1.0, busy)
        self.client.report(
            self.job,
            schedule.rank,
            [whole],
            [spent + BLOCKING * (whole - busy)],
            times,
            energies,
            round=schedule.round,
        )

    def play(self, until: str, most: int = 40) -> list[list[RankSchedule]]:
        """Rounds up to the first of a phase, which is not reported."""
        played = []
        while len(played) < most:
            played.append(self.schedules())
            if played[-1][0].phase == until:
                return played
            self.report(played[-1])
        raise AssertionError(f"no {until} within {most} rounds: {[rows[0].phase for rows in played]}")

    def close(self) -> None:
        self.pool.shutdown()
