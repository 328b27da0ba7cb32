"""docs/from-perseus.md: its commands run, its job plays its plan, and the names in its tables are there."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from halocline import energy
from halocline.cli.verbs import VERBS
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.server.environment import options_of
from halocline.energy.server.settings import scheduler_named
from halocline.plan.flags.dialects import FOREIGN
from halocline.plan.flags.fields import settings_of
from halocline.plan.flags.reader import spelled
from harness import COMMAND
from harness.processes import typed

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "from-perseus.md").read_text(encoding="utf-8")
LINES = re.findall(r"^    (\S.*(?:\n        .*)*)", TEXT.replace(" \\\n", "\n"), re.MULTILINE)
COMMANDS = [" ".join(line.split()) for line in LINES]
PLAN = "freqs_pipeline_00007.py"


def command(start: str) -> str:
    (found,) = [line for line in COMMANDS if line.startswith(start)]
    return found


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    part = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in table[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the page's plan."""
    (source,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / PLAN).write_text(source, encoding="utf-8")
    return tmp_path


def test_the_schedulers() -> None:
    table = rows("Schedulers")
    assert len(table) == 3
    for theirs, ours, _ in table:
        for name in quoted(theirs):
            assert [scheduler_named(name)] == quoted(ours)
    for name in re.findall(r"`(\w+)`", TEXT.split("baselines ")[1].split(" are not played")[0]):
        with pytest.raises(ValueError, match="is unknown"):
            scheduler_named(name)


def test_the_environment() -> None:
    values = {
        "SCHEDULER": "AllMax",
        "SCHEDULER_ARGS": '{"solution_path": "x.py", "minimum_power_state": 850}',
        "MAX_JOB_IDLE_TIME": "86400",
        "MODE": "frequency",
    }
    for variables, here in rows("The server's environment"):
        for variable in quoted(variables):
            value = values.get(re.sub("^(ZEUS_PFO|PERSEUS)_", "", variable), "x")
            found = options_of({variable: value})
            flags = {f"--{name.replace('_', '-')}" for name in found.options}
            if "nothing:" in here or here == "nothing":
                assert not flags and variable in found.line()
            elif variable == "PERSEUS_MODE":
                assert not found.line()
            else:
                assert flags - {"--scheduler"} == set(quoted(here)) & flags - {"--scheduler"} and flags


def test_the_names_are_there() -> None:
    known = {spelled(flag) for verb in VERBS for flag in settings_of(import_module(verb.module).Options)}
    theirs = {name for heading in ("Names", "lowtime") for row in rows(heading) for name in quoted(row[0])}
    theirs |= {f"--{name}" for name in FOREIGN}
    for flag in re.findall(r"(?<![\w`-])--[a-z][\w-]*|(?<=`)--[a-z][\w-]*", TEXT):
        assert flag in known or flag in theirs or flag in ("--dry_run", "--port"), flag
    for name in re.findall(r"`energy\.([\w.]+)`", TEXT):
        found: object = energy
        for part in name.split("."):
            found = getattr(found, part)
    for verb in re.findall(r"halocline ((?:energy )?[a-z]+)\b", TEXT):
        assert verb in {one.name for one in VERBS}


def test_the_names_of_zeus_are_there() -> None:
    pytest.importorskip("zeus")
    pytest.importorskip("aiofiles")
    script = (
        "import zeus.optimizer.pipeline_frequency.optimizer as o\n"
        "import zeus.optimizer.pipeline_frequency.server.scheduler as s\n"
        "import zeus.device, zeus.monitor\n"
        "o.PipelineFrequencyOptimizer, o.FrequencyController, s.PointSolution, s.PointSolution3D\n"
        "zeus.device.get_gpus, zeus.monitor.ZeusMonitor\n"
        "from zeus.optimizer.pipeline_frequency.common import PFOServerSettings as p\n"
        "print(*(f'{p.__config__.env_prefix}{name}'.upper() for name in p.__fields__))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    listed = {name for row in rows("The server's environment") for name in quoted(row[0])}
    assert set(done.stdout.split()) == {name for name in listed if name.startswith("ZEUS")}


@pytest.mark.slow
def test_a_command_of_the_paper_is_priced(tmp_path: Path) -> None:
    words = shlex.split(command("bash run.sh"))
    done = subprocess.run(
        ["bash", str(ROOT / words[1]), *words[2:]],
        env={**os.environ, "PYTHON": sys.executable}, cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "gpt3-xl: 27 layers, 1,313.63 M parameters" in done.stdout


def test_the_frontier_is_written_and_its_plans_are_read(tmp_path: Path) -> None:
    line = command("halocline energy frontier").replace("examples/", f"{ROOT}/examples/")
    (ended,) = typed([line], tmp_path)
    assert ended.code == 0, ended.err
    plans = sorted((tmp_path / "frontier" / "plans").glob("plan-*.json"))
    assert plans and FrequencyPlan.load(plans[0]).timed


@pytest.fixture(params=["ZEUS_PFO_SCHEDULER", "halocline energy serve"])
def url(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The server of the page, by either of its commands, at a free port."""
    (line,) = [one for one in COMMANDS if one.startswith(request.param) and "uvicorn" not in one]
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words if word.startswith("ZEUS_PFO_"))
    options = words[len(variables) + 1 :]
    server = subprocess.Popen(
        [*COMMAND, *options, "--port", "0"],
        env={**os.environ, **variables}, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    said = server.stdout.readline()
    try:
        assert said.startswith("energy server on http://127.0.0.1:") and "(point-solution," in said, said
        yield said.split()[3]
    finally:
        server.kill()
        server.communicate()


@pytest.mark.slow
def test_the_job_plays_the_plan(url: str, folder: Path) -> None:
    line = command("halocline train").replace("http://127.0.0.1:7787", url)
    (ended,) = typed([line], folder)
    assert ended.code == 0, ended.err
    plan = FrequencyPlan.load(folder / PLAN)
    for rank, row in enumerate(plan.frequencies):
        with (folder / "runs" / "played" / f"instructions-{rank}.csv").open() as file:
            done = [one for one in csv.DictReader(file) if one["instruction"].startswith(("forward", "backward"))]
        played = [(one["instruction"].removesuffix("_microstep"), one["frequency"]) for one in done]
        steps = [played[at : at + len(row)] for at in range(0, len(played), len(row))]
        assert len(steps) == 6
        # What is before the first schedule runs at the device's own clock.
        assert [(kind, str(frequency)) for kind, frequency in row] == steps[-1] == steps[1]
