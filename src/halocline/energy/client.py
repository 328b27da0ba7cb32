"""The client of the energy server: plain HTTP with a deadline on everything, standard library only. It knows the wire
and the plan; what a frequency does to a device is the controller's.

`Client` tells every failure: `ServerGone` where nobody answers, `ServerRefused` where the answer is no. `RankClient` is
what sits in a training loop: it never raises, says once that the server is gone, and asks again at the next window, so
that training goes on at default clocks and finds a restarted server by itself.

    client = Client("http://127.0.0.1:7787", token=token)
    job = client.register_job(plan, device="simulated", blocking_power=20.0)        # rank 0, then broadcast
    client.register_rank(job, rank, plan, frequencies)                              # every rank
    here = RankClient(client, job, rank)
    while training:
        schedule = here.schedule()            # None: default clocks
        ...                                   # some iterations
        here.report(times, energies, {"forward": [[...], ...]}, {"forward": [[...], ...]})
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan

Breakdown = Mapping[str, Sequence[Sequence[float]]]
"""Instruction -> for each iteration, a number for each time it ran. An instruction is named by its kind (`forward`), or
by kind and stage (`forward s2`), which a rank that holds several stages must do."""


class Seat(NamedTuple):
    """Where a rank sits in a job, in the words of the wire; client and server agree here on how a plan's ranks are
    numbered. Ranks of different replicas with the same place and member play the same list of instructions, whatever
    numbers a launcher gave them."""

    replica: int
    """The data rank."""
    place: int
    """The pipeline rank: the rank's place in the first pipe."""
    member: int
    """The tensor rank: its index in the team of its place, tiles, lanes and tensor ranks alike."""

    @classmethod
    def of(cls, plan: Plan, rank: int) -> Seat:
        """The seat of a plan's global rank."""
        layout = Layout(plan)
        role = layout.roles(rank)[0]
        return cls(role.replica, role.stage, layout.team(0, role.stage, role.replica).index(rank))

    def local_rank(self, plan: Plan) -> int:
        """Whose list of instructions is played here: a rank of one replica."""
        return sum(stage.team_size for stage in plan.stages[: self.place]) + self.member


def job_degrees(plan: Plan) -> dict[str, int]:
    """A plan in the four numbers of the wire. The tensor degree is the size of the largest team."""
    return {
        "pp_degree": plan.places,
        "dp_degree": plan.replicas,
        "tp_degree": max(stage.team_size for stage in plan.stages[: plan.places]),
        "world_size": plan.world_size,
    }


class ServerGone(ConnectionError):
    """Nobody answered, or not in time."""


class ServerRefused(ValueError):
    """The server answered no; the message is its reason."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class RankSchedule:
    """What a rank plays until it asks again."""

    rank: int
    frequencies: tuple[tuple[str, int], ...]
    """The kind of each of the rank's compute instructions, in order, and its MHz (0: leave the clock alone)."""
    round: int
    """Counts the schedules of a job; all ranks play the same round."""
    phase: str
    """profiling, solving, deployed, playing (plans that were given) or all-max."""
    time: float | None
    """Seconds of an iteration, where a plan is played that says so."""
    energy: float | None
    """Joules of an iteration of one replica, likewise."""


class Client:
    """Asks the server and tells every failure."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        connect: float = 2.0,
        timeout: float = 10.0,
        patience: float = 150.0,
    ) -> None:
        """Seconds: `connect` to reach the server, `timeout` for an answer, `patience` for a schedule, which comes only
        when every rank has asked for it."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            raise ValueError(f"server {url!r} has no port from 0 to 65535: write http://HOST:7787") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"server {url!r} is not an address: write http://HOST:7787")
        # The address is printed; the token that may stand in it is not.
        self.url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._path = parts.path.rstrip("/")
        self._token = token or unquote(parts.password or "") or None
        self._connect, self._timeout, self._patience = connect, timeout, patience

    # -- what a training job says --------------------------------------------------------------------------------

    def register_job(
        self,
        plan: Plan,
        *,
        device: str,
        blocking_power: float | None = None,
        metadata: str | None = None,
        scheduler: str | None = None,
    ) -> str:
        """Announces a job; its id. `device` is what the ranks run on ("simulated" is shown as such everywhere),
        `blocking_power` the watts of a rank that waits; left out, the server's own settings hold."""
        body: dict[str, Any] = {**job_degrees(plan), "plan": plan.to_toml(), "device": device}
        given = {"blocking_power": blocking_power, "job_metadata": metadata, "scheduler": scheduler}
        body |= {name: value for name, value in given.items() if value is not None}
        return str(self.ask("POST", "/register_job", body))

    def register_rank(self, job: str, rank: int, plan: Plan, frequencies: Sequence[int]) -> None:
        """Announces a rank of a job and the MHz it can run at."""
        replica, place, member = Seat.of(plan, rank)
        seat = {"rank": rank, "dp_rank": replica, "pp_rank": place, "tp_rank": member}
        body = {**seat, "available_frequencies": list(frequencies)}
        self.ask("POST", f"/register_rank/{job}", body)

    def schedule(self, job: str, rank: int) -> RankSchedule:
        """What the rank plays next; waits until every rank has asked."""
        reply = self.ask("GET", f"/schedule/{job}?{urlencode({'rank': rank})}", timeout=self._patience)
        try:
            return RankSchedule(
                reply["rank"],
                tuple((str(name), int(frequency)) for name, frequency in reply["frequencies"]),
                reply.get("round", 0),
                reply.get("phase", ""),
                reply.get("time"),
                reply.get("energy"),
            )
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ServerGone(
                f"{self.url} answered with something that is no schedule: is it an energy server?"
            ) from error

    def report(
        self,
        job: str,
        rank: int,
        times: Sequence[float],
        energies: Sequence[float],
        time_breakdown: Breakdown | None = None,
        energy_breakdown: Breakdown | None = None,
        round: int | None = None,
    ) -> None:
        """Tells what playing a schedule took: seconds and joules of each iteration, and of each instruction in it. With
        the round it is about, saying it twice counts once."""
        body: dict[str, Any] = {"rank": rank, "iter_time": list(times), "iter_energy": list(energies)}
        for of, table in (("time", time_breakdown), ("energy", energy_breakdown)):
            body[f"{of}_breakdown"] = {name: list(map(list, rows)) for name, rows in (table or {}).items()}
        if round is not None:
            body["round"] = round
        self.ask("POST", f"/result/{job}", body)

    def straggler(
        self, job: str, factor: float, *, rank: int | None = None, replica: int | None = None
    ) -> dict[str, Any]:
        """A straggler makes iterations take `factor` times the shortest; 1 says that it is over. Name its rank or its
        replica if it is one of this job's."""
        body = {"factor": factor, "rank": rank, "dp_rank": replica}
        return dict(self.ask("POST", f"/straggler/{job}", body))

    # -- what anybody may ask ------------------------------------------------------------------------------------

    def jobs(self) -> list[dict[str, Any]]:
        return list(self.ask("GET", "/jobs"))

    def job(self, job: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/jobs/{job}"))

    def frontier(self, job: str, time: float | None = None) -> dict[str, Any]:
        """The job's frontier; with a time, also the plan that meets it and its timeline."""
        query = "" if time is None else f"?{urlencode({'time': time})}"
        return dict(self.ask("GET", f"/frontier/{job}{query}"))

    # -- the wire ------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: object = None, timeout: float | None = None) -> Any:
        """One request and its JSON answer."""
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=self._connect)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.connect()
            connection.sock.settimeout(timeout or self._timeout)
            data = None if body is None else json.dumps(body, allow_nan=False).encode()
            connection.request(method, self._path + path, data, headers)
            reply = connection.getresponse()
            text, status = reply.read(), reply.status
        except (OSError, HTTPException) as error:
            why = str(error) or type(error).__name__
            raise ServerGone(f"the energy server at {self.url} does not answer ({why})") from error
        finally:
            connection.close()
        try:
            answer = json.loads(text)
        except ValueError:
            raise ServerGone(f"{self.url} answers {status} and no JSON: is it an energy server?") from None
        if status >= 500:
            raise ServerGone(f"the energy server at {self.url} has failed: {_detail(answer, status)}")
        if status >= 400:
            raise ServerRefused(_detail(answer, status), status)
        return answer


class RankClient:
    """A rank's side of a job that must not be disturbed: what fails is said once, and training goes on."""

    def __init__(self, client: Client, job: str, rank: int, say: Callable[[str], None] | None = None) -> None:
        self.client, self.job, self.rank = client, job, rank
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._silent = False
        self._round: int | None = None

    def schedule(self) -> RankSchedule | None:
        """What to play next; None where nobody says, which means default clocks."""
        try:
            found = self.client.schedule(self.job, self.rank)
        except (ServerGone, ServerRefused) as error:
            self._lost(error, "at default clocks")
            return None
        self._found()
        self._round = found.round
        return found

    def report(
        self,
        times: Sequence[float],
        energies: Sequence[float],
        time_breakdown: Breakdown | None = None,
        energy_breakdown: Breakdown | None = None,
    ) -> bool:
        """Whether the server has kept the report. Nothing is reported of a window without a schedule."""
        if self._round is None:
            return False
        try:
            self.client.report(
                self.job, self.rank, times, energies, time_breakdown, energy_breakdown, round=self._round
            )
        except (ServerGone, ServerRefused, ValueError) as error:
            self._lost(error)
            return False
        self._found()
        return True

    def _lost(self, error: Exception, how: str = "without it") -> None:
        if not self._silent:
            self._say(f"rank {self.rank}: {error}; training goes on {how}")
        self._silent = True
        self._round = None

    def _found(self) -> None:
        if self._silent:
            self._say(f"rank {self.rank}: the energy server at {self.client.url} answers again")
        self._silent = False


def _detail(answer: object, status: int) -> str:
    detail = answer.get("detail") if isinstance(answer, dict) else None
    return str(detail or f"status {status}")
