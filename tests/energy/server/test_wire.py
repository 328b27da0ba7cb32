"""The wire: the four endpoints of the Zeus pipeline-frequency client as it uses them, and every way to misuse them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from harness.serving import Near

JOB = {"pp_degree": 2, "dp_degree": 1, "tp_degree": 1, "world_size": 2}


def rank_info(rank: int, **changes: Any) -> dict[str, Any]:
    seat = {"rank": rank, "dp_rank": 0, "pp_rank": rank, "tp_rank": 0}
    return {**seat, "available_frequencies": [1410, 1395, 1380], **changes}


def result(rank: int, **changes: Any) -> dict[str, Any]:
    return {"rank": rank, "iter_time": [1.0, 1.1], "iter_energy": [100.0, 101.0], **changes}


def registered(server: Near, **changes: Any) -> str:
    """A job as Zeus registers it, with both ranks."""
    # Zeus sends its whole model, the empty id included.
    status, job = server.ask("POST", "/register_job", {"job_id": "", **JOB, "job_metadata": None, **changes})
    assert status == 200
    for rank in range(2):
        assert server.ask("POST", f"/register_rank/{job}", rank_info(rank)) == (200, None)
    return str(job)


def asked(server: Near, job: str) -> dict[int, tuple[int, Any]]:
    """Both ranks ask for a schedule at once."""
    found: dict[int, tuple[int, Any]] = {}

    def ask(rank: int) -> None:
        found[rank] = server.ask("GET", f"/schedule/{job}?rank={rank}")

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


# -- as it is meant ------------------------------------------------------------------------------------------------


def test_a_job_as_zeus_plays_it(shared: Near) -> None:
    job = registered(shared, scheduler="all-max")
    for rank, (status, schedule) in asked(shared, job).items():
        assert status == 200
        assert schedule["rank"] == rank
        # 1f1b of two stages and the default eight microbatches.
        kinds = [name for name, _ in schedule["frequencies"]]
        assert kinds[: 3 - rank] == ["forward", "forward", "backward"][rank:]
        assert kinds.count("forward") == kinds.count("backward") == 8
        assert {frequency for _, frequency in schedule["frequencies"]} == {1410}
    for rank in range(2):
        assert shared.ask("POST", f"/result/{job}", result(rank)) == (200, None)
    assert [schedule["round"] for _, schedule in asked(shared, job).values()] == [1, 1]


def test_a_schedule_waits_for_every_rank(shared: Near) -> None:
    job = registered(shared)
    early: list[Any] = []
    thread = threading.Thread(target=lambda: early.append(shared.ask("GET", f"/schedule/{job}?rank=0")))
    thread.start()
    thread.join(0.5)
    assert thread.is_alive() and not early
    assert shared.ask("GET", f"/schedule/{job}?rank=1")[0] == 200
    thread.join(20)
    assert early[0][0] == 200


def test_a_rank_that_has_not_reported_gets_its_schedule_again(shared: Near) -> None:
    job = registered(shared)
    first = asked(shared, job)[0]
    assert shared.ask("GET", f"/schedule/{job}?rank=0") == first


def test_reports_before_any_schedule_are_kept(shared: Near) -> None:
    job = registered(shared)
    for _ in range(3):
        assert shared.ask("POST", f"/result/{job}", result(1)) == (200, None)
    assert shared.ask("GET", f"/jobs/{job}")[1]["reports"] == 3


def test_a_report_that_names_its_round_counts_once(shared: Near) -> None:
    job = registered(shared, scheduler="all-max")
    asked(shared, job)
    body = result(0, round=0)
    assert [shared.ask("POST", f"/result/{job}", body)[0] for _ in range(2)] == [200, 200]
    assert shared.ask("GET", f"/jobs/{job}")[1]["reports"] == 1
    assert shared.ask("POST", f"/result/{job}", {**body, "iter_time": [9.0, 9.0]})[0] == 409
    assert shared.ask("POST", f"/result/{job}", {**body, "round": 1})[0] == 409


def test_registering_again_is_fine_with_the_same_data_only(shared: Near) -> None:
    job = registered(shared)
    assert shared.ask("POST", f"/register_rank/{job}", rank_info(1)) == (200, None)
    status, body = shared.ask("POST", f"/register_rank/{job}", rank_info(1, available_frequencies=[5]))
    assert (status, "rank 1" in body["detail"]) == (409, True)


# -- as it is not meant --------------------------------------------------------------------------------------------

NAN = b'{"rank": 0, "iter_time": [NaN], "iter_energy": [1.0]}'
DEEP = b'{"rank": 0, "iter_time": ' + b"[" * 5000 + b"]" * 5000 + b"}"
MISUSES: list[tuple[str, str, object, int, str]] = [
    ("GET", "/schedule/nobody?rank=0", None, 404, "nobody"),
    ("POST", "/register_rank/nobody", rank_info(0), 404, "nobody"),
    ("POST", "/result/nobody", result(0), 404, "nobody"),
    ("POST", "/straggler/nobody", {"factor": 1.2}, 404, "nobody"),
    ("GET", "/frontier/nobody", None, 404, "nobody"),
    ("GET", "/jobs/nobody", None, 404, "nobody"),
    ("GET", "/schedule/{job}?rank=-1", None, 422, "rank"),
    ("GET", "/schedule/{job}?rank=1e3", None, 422, "rank"),
    ("GET", "/schedule/{job}?rank=" + "9" * 5000, None, 422, "rank"),
    ("GET", "/schedule/{job}", None, 422, "rank"),
    ("GET", "/schedule/{job}?rank=2", None, 422, "rank 2"),
    ("POST", "/register_job", {**JOB, "world_size": 3}, 422, "world_size"),
    ("POST", "/register_job", {**JOB, "pp_degree": 65536, "world_size": 65536}, 422, "fewer stages"),
    ("POST", "/register_job", {**JOB, "sweep": {"lowest_frequency": 0, "stride": 0, "patience": 1}}, 422, "stride"),
    ("POST", "/register_job", {**JOB, "pp_degree": 0}, 422, "pp_degree"),
    ("POST", "/register_job", {**JOB, "pp_degree": True}, 422, "pp_degree"),
    ("POST", "/register_job", {**JOB, "pp_degree": "2"}, 422, "pp_degree"),
    ("POST", "/register_job", {**JOB, "pp_degree": 10**30}, 422, "pp_degree"),
    ("POST", "/register_job", {**JOB, "job_id": "mine"}, 422, "job_id"),
    ("POST", "/register_job", {**JOB, "scheduler": "best"}, 422, "best"),
    ("POST", "/register_job", {**JOB, "scheduler": "point-solution"}, 422, "--plans"),
    ("POST", "/register_job", {**JOB, "plan": "schedule = 7"}, 422, "stages"),
    ("POST", "/register_job", {**JOB, "plan": "[[stages]]\nlayers = [0, 1]\n"}, 422, "pp_degree"),
    ("POST", "/register_job", {**JOB, "blocking_power": -1}, 422, "blocking_power"),
    ("POST", "/register_job", [], 422, "object"),
    ("POST", "/register_job", b"\xff\xfe", 422, ""),
    ("POST", "/register_job", b"", 422, ""),
    ("POST", "/register_rank/{job}", rank_info(2), 422, "rank 2"),
    ("POST", "/register_rank/{job}", rank_info(-1), 422, "rank"),
    ("POST", "/register_rank/{job}", rank_info(0, pp_rank=1), 409, "rank 0"),
    ("POST", "/register_rank/{job}", rank_info(0, available_frequencies=[]), 422, "available_frequencies"),
    ("POST", "/register_rank/{job}", rank_info(0, available_frequencies=[0]), 422, "available_frequencies"),
    ("POST", "/result/{job}", result(2), 422, "rank 2"),
    ("POST", "/result/{job}", NAN, 422, "iter_time"),
    ("POST", "/result/{job}", NAN.replace(b"NaN", b"1e999"), 422, "iter_time"),
    ("POST", "/result/{job}", DEEP, 422, ""),
    ("POST", "/result/{job}", result(0, iter_time=[-1.0, 1.0]), 422, "iter_time"),
    ("POST", "/result/{job}", result(0, iter_energy=[1.0]), 422, "iter_energy"),
    ("POST", "/result/{job}", result(0, iter_time=[], iter_energy=[]), 422, "iter_time"),
    ("POST", "/result/{job}", result(0, time_breakdown={"forward": [[1.0]]}), 422, "time_breakdown"),
    ("POST", "/result/{job}", result(0, time_breakdown={"forward s1": [[1.0], [1.0]]}), 422, "stage"),
    ("POST", "/straggler/{job}", {"factor": 0.5}, 422, "factor"),
    ("POST", "/straggler/{job}", {"factor": 1.5, "rank": 7}, 422, "rank 7"),
    ("POST", "/straggler/{job}", {"factor": 1.5, "dp_rank": 1}, 422, "dp_rank 1"),
    ("POST", "/straggler/{job}", {"factor": 1.5, "rank": 0, "dp_rank": 1}, 422, "rank 0"),
    ("GET", "/frontier/{job}?time=nan", None, 422, "time"),
    ("GET", "/frontier/{job}?time=-1", None, 422, "time"),
    ("GET", "/result/{job}", None, 405, ""),
    ("POST", "/nothing", {}, 404, "/info"),
    ("GET", "/../../etc/passwd", None, 404, ""),
    ("GET", "/jobs/%2e%2e%2f%00", None, 404, ""),
]


@pytest.fixture(scope="module")
def misused(shared: Near) -> str:
    return registered(shared, scheduler="instruction-profiler")


@pytest.mark.parametrize("method,path,body,status,named", MISUSES, ids=range(len(MISUSES)))
def test_misuse_is_refused_in_one_line_that_names_it(
    shared: Near, misused: str, method: str, path: str, body: object, status: int, named: str
) -> None:
    got, answer = shared.ask(method, path.replace("{job}", misused), body)
    assert got == status, answer
    assert set(answer) == {"detail"} and "\n" not in answer["detail"]
    assert named in answer["detail"]


def test_who_is_not_registered_may_not_play(shared: Near) -> None:
    _, job = shared.ask("POST", "/register_job", JOB)
    assert shared.ask("GET", f"/schedule/{job}?rank=1")[0] == 409
    assert shared.ask("POST", f"/result/{job}", result(1))[0] == 409


def test_a_missing_rank_times_out_with_its_number(near: Callable[..., Near]) -> None:
    server = near(rank_timeout=2.0)
    _, job = server.ask("POST", "/register_job", {**JOB, "pp_degree": 3, "world_size": 3})
    server.ask("POST", f"/register_rank/{job}", rank_info(0))
    status, body = server.ask("GET", f"/schedule/{job}?rank=0")
    assert status == 408 and body["detail"].startswith("ranks 1, 2 have not registered")
    for rank in (1, 2):
        server.ask("POST", f"/register_rank/{job}", rank_info(rank))
    # Two of three ask; both are told of the third, and of nobody else.
    replies: list[tuple[int, Any]] = []
    threads = [
        threading.Thread(target=lambda r=rank: replies.append(server.ask("GET", f"/schedule/{job}?rank={r}")))
        for rank in (0, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in replies] == [408, 408]
    for _, body in replies:
        assert body["detail"].startswith("rank 1 has not asked for schedule 0 within 2 s")


def test_a_body_beyond_the_limit(near: Callable[..., Near]) -> None:
    server = near(body_limit=1000)
    large = json.dumps({**JOB, "job_metadata": "x" * 2000}).encode()
    status, body = server.ask("POST", "/register_job", large)
    assert status == 413 and "1000" in body["detail"]
    # The same without saying so first: in chunks.
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"POST /register_job HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(large), 500):
            part = large[start : start + 500]
            raw.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        raw.sendall(b"0\r\n\r\n")
        assert b" 413 " in raw.recv(100)
    assert server.ask("POST", "/register_job", JOB)[0] == 200


def test_headers_beyond_the_limit(near: Callable[..., Near]) -> None:
    server = near()
    status, body = server.ask("GET", "/jobs", headers={f"X-{n}": "x" * 60_000 for n in range(2)})
    assert status == 431 and "65536" in body["detail"]


def test_a_flood_is_held_back(near: Callable[..., Near]) -> None:
    server = near(rank_rate=1.0)
    job = registered(server)
    floods = [server.ask("POST", f"/result/{job}", result(0)) for _ in range(20)]
    assert {status for status, _ in floods} == {200, 429}
    refused = next(body for status, body in floods if status == 429)
    assert "rank 0" in refused["detail"]
    assert server.ask("POST", f"/result/{job}", result(1))[0] == 200  # the other rank is not held back


def test_a_flood_from_one_address_is_held_back(near: Callable[..., Near]) -> None:
    server = near(rate=1.0)
    statuses = [server.ask("GET", "/health")[0] for _ in range(20)]
    assert statuses[:2] == [200, 200] and 429 in statuses


# -- looking -------------------------------------------------------------------------------------------------------


def test_info_health_and_metrics(shared: Near) -> None:
    registered(shared)
    assert shared.ask("GET", "/health") == (200, {"status": "ok"})
    info = shared.ask("GET", "/info")[1]
    assert info["scheduler"] == "instruction-profiler"
    assert {"/register_job", "/schedule/{job}", "/straggler/{job}", "/frontier/{job}"} <= set(info["paths"])
    text = shared.ask("GET", "/metrics")[1]
    samples: dict[str, float] = {}
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            samples[name] = float(value)
    assert samples['halocline_energy_requests_total{method="GET",path="/health",status="200"}'] >= 1
    assert samples["halocline_energy_ranks"] >= 2
    path = '{path="/health"'
    assert samples[f'halocline_energy_request_seconds_bucket{path},le="+Inf"}}'] >= 1
