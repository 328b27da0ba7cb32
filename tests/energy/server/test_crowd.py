"""Many at once, and nonsense: no two jobs share an id, and nothing a client sends makes the server fail."""

from __future__ import annotations

import http.client
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from halocline.energy.server.limits import Rates
from harness.fuzzed_requests import requests
from harness.serving import Near

JOB = {"pp_degree": 2, "dp_degree": 1, "tp_degree": 1, "world_size": 2}


def test_registrations_at_once_get_ids_of_their_own(shared: Near) -> None:
    with ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(lambda _: shared.ask("POST", "/register_job", JOB), range(200)))
    assert {status for status, _ in replies} == {200}
    assert len({job for _, job in replies}) == 200
    assert len(shared.ask("GET", "/jobs")[1]) == 200
    latest = [job["job"] for job in shared.ask("GET", "/jobs?latest=3")[1]]
    assert len(latest) == 3


@pytest.mark.parametrize("seed", range(4))
def test_nonsense_never_makes_the_server_fail(near: Callable[..., Near], seed: int) -> None:
    server = near(rank_timeout=0.05, rate=1e6, rank_rate=1e6)
    _, job = server.ask("POST", "/register_job", JOB)
    for rank in range(2):
        seat = {"rank": rank, "dp_rank": 0, "pp_rank": rank, "tp_rank": 0}
        server.ask("POST", f"/register_rank/{job}", {**seat, "available_frequencies": [1410, 1395]})
    statuses: set[int] = set()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for method, path, body in requests(str(job), random.Random(seed), 250):
        connection.request(method, path, body)
        reply = connection.getresponse()
        assert b"Traceback" not in reply.read()
        statuses.add(reply.status)
        assert reply.status < 500, (method, path, body)
    connection.close()
    assert {200, 404, 405, 422} <= statuses
    assert server.ask("GET", "/health")[0] == 200


def test_rates_let_through_what_was_promised() -> None:
    now = 0.0
    rates = Rates(10.0, clock=lambda: now)
    assert [rates.wait("a") for _ in range(20)] == [0.0] * 20
    assert rates.wait("a") == pytest.approx(0.1)
    assert rates.wait("b") == 0.0
    passed = 0
    for _ in range(1000):
        now += 0.01
        passed += not rates.wait("a")
    assert passed == pytest.approx(100, abs=1)
