"""`halocline energy serve`: what its command line and the environment make of it, and what it refuses."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import COMMAND
from harness.serving import Own


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's environment."""
    for name in os.environ:
        if name.upper().startswith(("ZEUS_PFO_", "PERSEUS_", "HALOCLINE_")):
            monkeypatch.delenv(name)


@contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[Own]:
    server = Own(folder / "energy.sqlite", *options, environment=environment)
    try:
        yield server
    finally:
        server.kill()


def plan_file(path: Path, rows: Sequence[Sequence[object]]) -> str:
    path.write_text(f"{[list(row) for row in rows]}\n# as a solver wrote it\n")
    return str(path)


@pytest.mark.parametrize("unnamed", [False, True])
def test_a_plan_of_a_solver_is_served(tmp_path: Path, unnamed: bool) -> None:
    rows = [[("forward", 1410), ("forward", 1395), ("backward", 1200), ("backward", 1185)]]
    file = plan_file(tmp_path / "freqs.py", [[f for _, f in row] for row in rows] if unnamed else rows)
    with serving(tmp_path, "--scheduler", "PointSolution3D", "--plans", file, "--schedule", "gpipe") as server:
        assert server.ask("GET", "/info")[1]["scheduler"] == "point-solution"
        degrees = {"pp_degree": 1, "dp_degree": 1, "tp_degree": 1, "world_size": 1}
        _, job = server.ask("POST", "/register_job", degrees)
        seat = {"rank": 0, "dp_rank": 0, "pp_rank": 0, "tp_rank": 0, "available_frequencies": [1410, 1200]}
        assert server.ask("POST", f"/register_rank/{job}", seat) == (200, None)
        _, told = server.ask("GET", f"/schedule/{job}?rank=0")
        assert told["frequencies"] == [list(pair) for pair in rows[0]]
        assert (told["phase"], told["time"], told["energy"]) == ("playing", None, None)
        # Nobody knows its time: there is no frontier to show, and a straggler changes nothing.
        _, facts = server.ask("GET", f"/frontier/{job}?time=2.0")
        assert (facts["points"], facts["plan"], facts["phase"]) == ([], None, "playing")
        assert server.ask("POST", f"/straggler/{job}", {"factor": 1.5})[1]["time"] is None
        assert server.ask("GET", f"/schedule/{job}?rank=0")[1]["frequencies"] == told["frequencies"]


def test_the_environment_of_zeus_is_taken_over_and_the_command_line_wins(tmp_path: Path) -> None:
    file = plan_file(tmp_path / "freqs.py", [[1410, 1200]])
    zeus = {
        "ZEUS_PFO_SCHEDULER": "PointSolution",
        "ZEUS_PFO_SCHEDULER_ARGS": f'{{"solution_path": "{file}"}}',
        "ZEUS_PFO_LOG_LEVEL": "INFO",
    }
    for options, scheduler in ([], "point-solution"), (["--scheduler", "AllMax"], "all-max"):
        with serving(tmp_path, *options, **zeus) as server:
            assert server.ask("GET", "/info")[1]["scheduler"] == scheduler
            server.process.kill()
            said = server.process.communicate()[1]
        assert said.splitlines() == [
            f"halocline energy serve: from the environment: --scheduler point-solution --plans {file}; "
            "not used: ZEUS_PFO_LOG_LEVEL (errors are logged)"
        ]


def test_jobs_may_ask_for_a_scheduler_by_its_other_name(tmp_path: Path) -> None:
    degrees = {"pp_degree": 1, "dp_degree": 1, "tp_degree": 1, "world_size": 1}
    with serving(tmp_path) as server:
        _, job = server.ask("POST", "/register_job", {**degrees, "scheduler": "AllMaxFrequency3D"})
        assert server.ask("GET", f"/jobs/{job}")[1]["scheduler"] == "all-max"
        status, answer = server.ask("POST", "/register_job", {**degrees, "scheduler": "PointSolution"})
        assert status == 422 and "no plans here" in answer["detail"]
        assert server.ask("POST", "/register_job", {**degrees, "scheduler": "EnvPipe"})[0] == 422


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        ("--scheduler PointSolution3D", {}, "has 0 plans to play"),
        ("--scheduler TwoFrequencies", {}, "scheduler = 'TwoFrequencies' is unknown"),
        ("--scheduler point-solution --plans {folder}/bad.py", {}, 'bad.py: line 1 has "__import__'),
        ("--scheduler point-solution --plans {folder}/none.py", {}, "none.py: no such file"),
        ("--scheduler point-solution --plans {folder}/several", {}, "2 of 2 plans do not say how long they take"),
        ("--scheduler point-solution --plans {folder}/empty", {}, "holds 0 frequency plans"),
        ("", {"ZEUS_PFO_SCHEDULER": "PointSolution"}, "has 0 plans to play"),
        ("", {"ZEUS_PFO_SCHEDULER": "Mine"}, "ZEUS_PFO_SCHEDULER: scheduler = 'Mine' is unknown"),
        ("", {"ZEUS_PFO_SCHEDULER_ARGS": "{}}"}, "ZEUS_PFO_SCHEDULER_ARGS = '{}}' is no JSON object"),
        ("", {"ZEUS_PFO_SCHEDULER_ARGS": '{"solution_path": "/none.py"}'}, "/none.py: no such file"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path: Path, options: str, variables: dict[str, str], message: str) -> None:
    (tmp_path / "bad.py").write_text("__import__('os').system('touch evaluated')")
    (tmp_path / "empty").mkdir()
    (tmp_path / "several").mkdir()
    for number in range(2):
        plan_file(tmp_path / "several" / f"freqs_pipeline_{number:05d}.py", [[1410, 1200]])
    # A process of its own: one that finds no mistake serves for ever.
    done = subprocess.run(
        [*COMMAND, "energy", "serve", "--port", "0", *options.format(folder=tmp_path).split()],
        env={**os.environ, **variables}, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    said = done.stderr.splitlines()
    assert message in said[-1] and len(said) <= 2 and all(line.startswith("halocline") for line in said)
    assert not (tmp_path / "evaluated").exists()
