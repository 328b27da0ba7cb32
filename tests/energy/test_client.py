"""The client when something is wrong: every failure told by `Client`, and training left alone by `RankClient`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from halocline.energy.client import Client, RankClient, ServerGone, ServerRefused
from halocline.energy.server.settings import ServerSettings
from halocline.plan.plan import Plan
from harness.serving import FREQUENCIES, Near

PLAN = Plan.uniform(1, microbatches=2)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        return port


@contextmanager
def answering(reply: bytes | None) -> Iterator[str]:
    """Something that is no energy server: says `reply` to everybody, or nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                held.append(connection)
                if reply is not None:
                    connection.recv(65536)
                    connection.sendall(reply)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


def test_addresses_that_are_none() -> None:
    for url in ("127.0.0.1:7787", "ftp://x", "http://", "", "http://x:99999", "http://x:y"):
        with pytest.raises(ValueError, match="http://HOST:7787"):
            Client(url)


def test_the_token_of_an_address_is_not_printed() -> None:
    client = Client(f"http://any:s%40ecret@127.0.0.1:{free_port()}/")
    assert client._token == "s@ecret"
    with pytest.raises(ServerGone) as gone:
        client.jobs()
    assert "ecret" not in str(gone.value) and client.url.startswith("http://127.0.0.1:")


def test_nobody_there() -> None:
    with pytest.raises(ServerGone, match="does not answer"):
        Client(f"http://127.0.0.1:{free_port()}").jobs()


def test_somebody_who_never_answers_costs_no_more_than_the_timeout() -> None:
    with answering(None) as url:
        start = time.monotonic()
        with pytest.raises(ServerGone, match="does not answer"):
            Client(url, timeout=0.3).jobs()
        with pytest.raises(ServerGone):
            Client(url, patience=0.3).schedule("job", 0)
        assert time.monotonic() - start < 60  # the defaults are 10 and 150


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"",
    ],
)
def test_somebody_else_is_no_server(reply: bytes) -> None:
    with answering(reply) as url:
        with pytest.raises(ServerGone):
            Client(url).schedule("job", 0)
        said: list[str] = []
        assert RankClient(Client(url), "job", 0, said.append).schedule() is None
        assert len(said) == 1


def test_a_refusal_carries_the_servers_reason(shared: Near) -> None:
    with pytest.raises(ServerRefused, match="'nobody' is not known") as refused:
        Client(shared.url).job("nobody")
    assert refused.value.status == 404


def test_training_goes_on_without_the_server_and_says_so_once(tmp_path: Path) -> None:
    server = Near(tmp_path / "gone.sqlite", ServerSettings(scheduler="all-max"))
    client = Client(server.url)
    job = client.register_job(PLAN, device="simulated")
    client.register_rank(job, 0, PLAN, FREQUENCIES)
    said: list[str] = []
    here = RankClient(client, job, 0, said.append)
    first = here.schedule()
    assert first is not None and [f for _, f in first.frequencies] == [1400] * 4
    assert here.report([1.0], [2.0]) and said == []
    server.stop()
    for _ in range(3):
        assert here.schedule() is None  # default clocks
        assert not here.report([1.0], [2.0])
    assert len(said) == 1 and "default clocks" in said[0]

    # The server comes back at the same place, and knows the job.
    restarted = Near(tmp_path / "gone.sqlite", ServerSettings(scheduler="all-max"))
    here.client = Client(restarted.url)
    found = here.schedule()
    assert found is not None and found.round == 1
    assert len(said) == 2 and "answers again" in said[1]
    restarted.stop()


def test_numbers_that_json_does_not_have_do_not_stop_training(shared: Near) -> None:
    client = Client(shared.url)
    job = client.register_job(PLAN, device="simulated", scheduler="all-max")
    client.register_rank(job, 0, PLAN, FREQUENCIES)
    said: list[str] = []
    here = RankClient(client, job, 0, said.append)
    assert here.schedule() is not None
    assert not here.report([float("nan")], [1.0])
    assert len(said) == 1
