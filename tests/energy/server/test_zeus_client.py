"""The real Zeus pipeline-frequency client against this server: whole jobs, and its calls in any order."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from halocline.energy.frontier.frontier import solve
from halocline.plan.plan import Plan
from halocline.schedule.generate import generate
from halocline.schedule.instruction import COMPUTE
from harness.checks import FOLDER
from harness.serving import BLOCKING, Near, Own, law, profile

pytest.importorskip("zeus")
pytest.importorskip("aiofiles")  # which Zeus imports and does not ask for

TOKEN = "0123456789abcdef"
MICROBATCHES = 3
CLOCKS = (1400, 1200, 1000)
PATIENCE = 240.0


class Zeus:
    """Jobs of Zeus's client, in processes of their own, from one that has loaded torch and Zeus."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", str(FOLDER / "zeus_job.py")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, text=True)

    def train(
        self,
        server: Near | Own,
        folder: Path,
        *acts: Sequence[str],
        degrees: tuple[int, int, int] = (2, 1, 1),
        order: str = "pp dp tp",
        token: str | None = None,
    ) -> Training:
        folder.mkdir()
        table = [
            {kind: {str(clock): law(stage, kind, clock) for clock in CLOCKS} for kind in ("forward", "backward")}
            for stage in range(degrees[0])
        ]
        spec = {
            "degrees": degrees, "microbatches": MICROBATCHES, "order": order.split(), "acts": acts, "law": table,
            "blocking": BLOCKING,
        }  # fmt: skip
        url = server.url if token is None else server.url.replace("http://", f"http://zeus:{token}@")
        assert self._process.stdin is not None
        print(json.dumps([url, str(folder), spec]), file=self._process.stdin, flush=True)
        return Training(self._process, folder, math.prod(degrees))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


class Training:
    """One job."""

    def __init__(self, starter: subprocess.Popen[str], folder: Path, ranks: int) -> None:
        self._starter, self.folder, self.ranks = starter, folder, ranks

    def here(self, *ranks: int) -> None:
        """Waits until some ranks, or all, wait to be told that they may go on."""
        for rank in ranks or range(self.ranks):
            self._await(f"here-{rank}")

    def go(self, url: str = "") -> None:
        """Tells them, and where the server is by now."""
        (self.folder / "go-").write_text(url)
        (self.folder / "go-").rename(self.folder / "go")

    def done(self) -> list[list[dict[str, Any]]]:
        """What each rank did, and what came of it."""
        self._await("code")
        assert (self.folder / "code").read_text() == "0", (self.folder / "said").read_text()
        return [json.loads((self.folder / f"rank-{rank}.json").read_text()) for rank in range(self.ranks)]

    def clocks(self, rank: int) -> list[str]:
        return (self.folder / f"clocks-{rank}").read_text().split()

    def _await(self, name: str) -> None:
        end = time.monotonic() + PATIENCE
        while not (self.folder / name).exists():
            over = (self.folder / "code").exists() or self._starter.poll() is not None
            if (over and not (self.folder / name).exists()) or time.monotonic() > end:
                said = self.folder / "said"
                with contextlib.suppress(OSError, ValueError):
                    os.killpg(int((self.folder / "leader").read_text()), signal.SIGKILL)
                raise AssertionError(f"no {name}: {said.read_text() if said.exists() else ''}")
            time.sleep(0.02)


@pytest.fixture(scope="module")
def zeus() -> Iterator[Zeus]:
    started = Zeus()
    yield started
    started.close()


def answers(done: list[dict[str, Any]], act: str) -> list[Any]:
    assert not any("error" in one for one in done), done
    return [one["answer"] for one in done if one["act"] == act]


def kinds(stages: int) -> list[list[str]]:
    schedule = generate(Plan.uniform(stages, microbatches=MICROBATCHES))
    return [[instruction.kind for instruction in row if instruction.kind in COMPUTE] for row in schedule.ranks]


def varied(stages: int) -> list[list[tuple[str, int]]]:
    """A plan in which every instruction has another frequency than the one before it."""
    cycle = [1200, 1000, 1000, 1200, 1400]
    return [[(kind, cycle[(at + stage) % 5]) for at, kind in enumerate(row)] for stage, row in enumerate(kinds(stages))]


def written(plan: Sequence[Sequence[tuple[str, int]]], path: Path) -> Path:
    """As lowtime writes it."""
    rows = "".join(f"{list(row)},\n" for row in plan)
    path.write_text(f"[\n{rows}]\n# Iteration 7 cost change: 1.5\n# Iteration 7 total cost: 81.25\n")
    return path


def set_in(rows: Sequence[Sequence[tuple[str, int]]]) -> list[str]:
    """The clocks that Zeus sets: it begins at the highest and sets one where it changes."""
    played = [1400, *(frequency for row in rows for _, frequency in row)]
    return [*(str(frequency) for frequency, _ in itertools.groupby(played)), "reset"]


# -- as it is meant ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "order"),
    [((1, 1, 1), "pp dp tp"), ((2, 2, 1), "pp dp tp"), ((2, 1, 2), "tp pp dp"), ((1, 2, 2), "dp pp tp")],
    ids=str,
)
def test_a_plan_of_lowtime_is_played_as_zeus_would(
    zeus: Zeus, own: Callable[..., Own], tmp_path: Path, degrees: tuple[int, int, int], order: str
) -> None:
    plan = varied(degrees[0])
    file = written(plan, tmp_path / "freqs_pipeline_00007.py")
    scheduler = {
        "ZEUS_PFO_SCHEDULER": "PointSolution3D",
        "ZEUS_PFO_SCHEDULER_ARGS": json.dumps({"solution_path": str(file)}),
    }
    server = own(environment=scheduler)
    training = zeus.train(server, tmp_path / "job", ["begin", "step", "step", "meet"], degrees=degrees, order=order)
    names = set()
    for rank, done in enumerate(training.done()):
        ((name, told),) = answers(done, "begin")
        names.add(name)
        stage = stage_of(rank, degrees, order)
        assert [tuple(one) for one in told] == plan[stage]
        assert training.clocks(rank) == set_in([plan[stage]] * 2)
    assert len(names) == 1
    job = job_of(server, names.pop())
    assert (job["metadata"], job["registered"], job["phase"]) == ("a Zeus client", training.ranks, "playing")
    assert job["scheduler"] == "point-solution" and job["microbatches"] == MICROBATCHES


@pytest.mark.parametrize("degrees", [(2, 1, 1), (2, 2, 1)], ids=str)
def test_a_job_is_profiled_solved_and_deployed(
    zeus: Zeus, near: Callable[..., Near], tmp_path: Path, degrees: tuple[int, int, int]
) -> None:
    server = near(patience=9, solve_wait=60.0, microbatches=MICROBATCHES, blocking_power=BLOCKING)
    training = zeus.train(
        server, tmp_path / "job", ["begin", *["step", "step", "report", "fetch"] * 4], degrees=degrees
    )
    rows = solved(degrees)
    for rank, done in enumerate(training.done()):
        stage = stage_of(rank, degrees)
        ((_, first),) = answers(done, "begin")
        told = [[tuple(one) for one in schedule] for schedule in (first, *answers(done, "fetch"))]
        swept = [[(kind, clock) for kind in kinds(2)[stage]] for clock in CLOCKS]
        assert told == [*swept, rows[stage], rows[stage]]
        assert answers(done, "report") == [[200, None]] * 4
        assert training.clocks(rank) == set_in([row for row in told[:-1] for _ in range(2)])
    (job,) = server.ask("GET", "/jobs")[1]
    assert (job["phase"], job["round"], job["reports"]) == ("deployed", 4, 4 * training.ranks)


def test_a_token_in_the_address(zeus: Zeus, near: Callable[..., Near], tmp_path: Path) -> None:
    server = near(scheduler="all-max", microbatches=MICROBATCHES, token=TOKEN)
    assert len(zeus.train(server, tmp_path / "job", ["begin", "step"], token=TOKEN).done()) == 2
    for done in zeus.train(server, tmp_path / "other", ["begin"], ["absent"], token="another token, wrong").done()[:1]:
        assert "status code 401" in done[0]["error"] and "the token is missing or wrong" in done[0]["error"]


# -- in any order --------------------------------------------------------------------------------------------------


def test_hooks_in_disorder_change_nothing(zeus: Zeus, own: Callable[..., Own], tmp_path: Path) -> None:
    plan = varied(2)
    server = own("--scheduler", "PointSolution", "--plans", str(written(plan, tmp_path / "plan.py")))
    training = zeus.train(server, tmp_path / "job", ["begin", "tangled", "report", "tangled", "fetch", *["step"] * 5])
    for rank, done in enumerate(training.done()):
        ((_, first),) = answers(done, "begin")
        assert answers(done, "fetch") == [first]
        assert answers(done, "report") == [[200, None]]
        assert training.clocks(rank) == set_in([plan[rank]] * 7)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("longer", "fewer frequencies than expected"),
        ("shorter", "more frequencies than expected"),
        ("other", "next expected instruction"),
    ],
)
def test_a_list_that_is_not_the_schedules_ends_that_job_and_no_other(
    zeus: Zeus, near: Callable[..., Near], tmp_path: Path, act: str, said: str
) -> None:
    server = near(scheduler="all-max", microbatches=MICROBATCHES)
    for done in zeus.train(server, tmp_path / "job", ["begin", "step", act, "step"]).done():
        assert [one["act"] for one in done] == ["begin", "step", act] and said in done[-1]["error"]
    for done in zeus.train(server, tmp_path / "next", ["begin", "step", "report", "fetch", "step"]).done():
        assert answers(done, "report") == [[200, None]]
    assert [job["registered"] for job in server.ask("GET", "/jobs")[1]] == [2, 2]


def test_reports_without_a_step_twice_or_none_at_all(zeus: Zeus, near: Callable[..., Near], tmp_path: Path) -> None:
    server = near(patience=9, solve_wait=60.0, microbatches=MICROBATCHES, blocking_power=BLOCKING)
    early = ["begin", "report", "report", "fetch", "fetch", "report", "step", "report", "fetch", "report", "fetch"]
    rows = solved((2, 1, 1))
    for rank, done in enumerate(zeus.train(server, tmp_path / "job", early).done()):
        swept = [[[kind, clock] for kind in kinds(2)[rank]] for clock in CLOCKS]
        # Who has not reported gets the same once more.
        assert answers(done, "fetch") == [swept[1], swept[1], swept[2], list(map(list, rows[rank]))]
        assert answers(done, "report") == [[200, None]] * 5


def test_a_rank_that_forgets_to_report_is_waited_for(zeus: Zeus, near: Callable[..., Near], tmp_path: Path) -> None:
    server = near(patience=9, solve_wait=60.0, microbatches=MICROBATCHES, blocking_power=BLOCKING)
    forgets = ["begin", "step", "fetch", "step", "report", "fetch", "step"]
    for rank, done in enumerate(
        zeus.train(server, tmp_path / "job", ["begin", "step", "report", "fetch", "step"], forgets).done()
    ):
        swept = [[[kind, clock] for kind in kinds(2)[rank]] for clock in CLOCKS]
        assert answers(done, "fetch") == ([swept[0]] if rank else []) + [swept[1]]
    (job,) = server.ask("GET", "/jobs")[1]
    assert (job["round"], job["reports"]) == (1, 2)


def test_a_rank_that_registers_again_is_the_same_rank(zeus: Zeus, near: Callable[..., Near], tmp_path: Path) -> None:
    server = near(scheduler="all-max", microbatches=MICROBATCHES)
    again = ["begin", "register", "step", "register otherwise", "report", "register", "fetch", "step"]
    plain, twice = zeus.train(server, tmp_path / "job", ["begin", "step", "report", "fetch", "step"], again).done()
    assert answers(twice, "register") == [[200, None]] * 2
    ((status, answer),) = answers(twice, "register otherwise")
    assert (status, "rank 1 is registered with other data" in answer["detail"]) == (409, True)
    assert answers(plain, "fetch") == [answers(plain, "begin")[0][1]]
    (job,) = server.ask("GET", "/jobs")[1]
    assert (job["registered"], job["round"]) == (2, 1)


def test_a_rank_that_is_late_is_waited_for(zeus: Zeus, near: Callable[..., Near], tmp_path: Path) -> None:
    server = near(scheduler="all-max", microbatches=MICROBATCHES)
    training = zeus.train(server, tmp_path / "job", ["begin", "step"], ["late", "step"])
    training.here(1)
    (job,) = server.ask("GET", "/jobs")[1]
    assert 1 in job["missing"] and job["phase"] == "waiting"
    training.go()
    for done in training.done():
        assert len(done) == 2 and "error" not in done[-1]


def test_a_rank_that_never_registers_is_named_to_the_others(
    zeus: Zeus, near: Callable[..., Near], tmp_path: Path
) -> None:
    server = near(rank_timeout=1.0, microbatches=MICROBATCHES)
    waited, _ = zeus.train(server, tmp_path / "job", ["begin"], ["absent"]).done()
    assert "status code 408" in waited[0]["error"] and "rank 1 has not registered within 1 s" in waited[0]["error"]
    (job,) = server.ask("GET", "/jobs")[1]
    assert (job["missing"], job["phase"]) == ([1], "waiting")


def test_a_report_when_the_job_is_over(zeus: Zeus, near: Callable[..., Near], tmp_path: Path) -> None:
    server = near(patience=9, microbatches=MICROBATCHES, blocking_power=BLOCKING)
    training = zeus.train(server, tmp_path / "job", ["begin", "step", "report"])
    name = answers(training.done()[0], "begin")[0][0]
    table = {kind: [[law(0, kind, 1400)[0]] * MICROBATCHES] for kind in ("forward", "backward")}
    late = {"rank": 0, "iter_time": [1.0], "iter_energy": [90.0], "time_breakdown": table, "energy_breakdown": table}
    assert server.ask("POST", f"/result/{name}", late) == (200, None)
    job = job_of(server, name)
    assert (job["round"], job["phase"], job["reports"]) == (0, "profiling", 3)
    assert server.ask("POST", "/result/none-of-these", late)[0] == 404


def test_jobs_one_after_the_other_and_side_by_side(zeus: Zeus, near: Callable[..., Near], tmp_path: Path) -> None:
    server = near(scheduler="all-max", microbatches=MICROBATCHES)
    acts = ["begin", "step", "told", "report", "fetch", "step", "begin", "step", "report", "fetch"]
    both = [zeus.train(server, tmp_path / str(dp), acts, degrees=(3 - dp, dp, 1)) for dp in (1, 2)]
    for training in both:
        training.here()
    for training in both:
        training.go()
    names = {name for training in both for done in training.done() for name, _ in answers(done, "begin")}
    assert len(names) == 4
    assert {(job["job"], job["registered"], job["round"]) for job in server.ask("GET", "/jobs")[1]} == {
        (name, 2, 1) for name in names
    }


def test_a_plan_of_other_degrees_is_refused_to_every_rank(zeus: Zeus, own: Callable[..., Own], tmp_path: Path) -> None:
    server = own("--scheduler", "point-solution", "--plans", str(written(varied(3), tmp_path / "plan.py")))
    for done in zeus.train(server, tmp_path / "job", ["begin", "step"]).done():
        assert len(done) == 1 and "the plan has 3 rows and the job 2 places" in done[0]["error"]


@pytest.mark.parametrize("before", ["report", "fetch"])
def test_a_server_that_is_killed_and_started_again(
    zeus: Zeus, own: Callable[..., Own], tmp_path: Path, before: str
) -> None:
    options = ["--microbatches", str(MICROBATCHES), "--patience", "9", "--blocking-power", str(BLOCKING)]
    options += ["--solve-wait", "60"]
    server = own(*options)
    killed = {"report": ["told", "report", "fetch"], "fetch": ["report", "told", "fetch"]}[before]
    acts = ["begin", "step", "report", "fetch", "step", *killed, "step", "report", "fetch", "step"]
    training = zeus.train(server, tmp_path / "job", acts)
    training.here()
    server.kill()
    server = own(*options)
    training.go(server.url)
    rows = solved((2, 1, 1))
    for rank, done in enumerate(training.done()):
        swept = [[[kind, clock] for kind in kinds(2)[rank]] for clock in CLOCKS]
        assert answers(done, "fetch") == [*swept[1:], list(map(list, rows[rank]))]
    (job,) = server.ask("GET", "/jobs")[1]
    assert (job["phase"], job["round"], job["reports"]) == ("deployed", 3, 6)


# -- what must come out --------------------------------------------------------------------------------------------


def job_of(server: Near | Own, name: str) -> Any:
    return server.ask("GET", f"/jobs/{name}")[1]


def stage_of(rank: int, degrees: tuple[int, int, int], order: str = "pp dp tp") -> int:
    """The pipeline rank, where the last degree of `order` is the one whose number changes fastest."""
    sizes, seat = dict(zip(("pp", "dp", "tp"), degrees)), {}
    for name in reversed(order.split()):
        rank, seat[name] = divmod(rank, sizes[name])
    return seat["pp"]


def solved(degrees: tuple[int, int, int]) -> list[list[tuple[str, int]]]:
    """The fastest plan of a profile with every clock, for each stage."""
    plan = Plan.uniform(degrees[0], microbatches=MICROBATCHES, replicas=degrees[1])
    frontier = solve(plan, profile(degrees[0], CLOCKS), BLOCKING)
    return [list(row) for row in frontier.plan_at(frontier.time_min).frequencies]
