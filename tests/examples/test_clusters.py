"""examples/clusters/: the batch script's commands are what a shell makes of them, and are parsed; the Dockerfile
copies what is there and installs extras that exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from halocline.cli.options import read_options
from halocline.cli.train import Options

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "examples" / "clusters" / "train.sbatch"
DOCKERFILE = (ROOT / "examples" / "clusters" / "Dockerfile").read_text(encoding="utf-8")


def started(directory: Path) -> list[str]:
    """What the batch script gives to srun, which here writes it down."""
    srun = directory / "bin" / "srun"
    srun.parent.mkdir(exist_ok=True)
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > started\n')
    srun.chmod(0o755)
    environment = {**os.environ, "PATH": f"{srun.parent}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "8"}
    subprocess.run(["bash", str(SBATCH)], cwd=directory, env=environment, check=True, timeout=60)
    return (directory / "started").read_text().splitlines()


def test_the_batch_script_starts_as_many_tasks_as_its_plan_needs(tmp_path: Path) -> None:
    srun, words = started(tmp_path), SBATCH.read_text(encoding="utf-8")
    assert srun[1:5] == ["python", "-m", "halocline", "train"]
    settings = read_options(Options, srun[5:], ("model",)).settings
    tasks = [int(re.findall(rf"^#SBATCH --{name}=(\d+)$", words, re.M)[0]) for name in ("nodes", "ntasks-per-node")]
    assert settings.plan.shape.world_size == tasks[0] * tasks[1]
    assert settings.run.run_dir == "runs/amoebanet"


def test_the_batch_script_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "runs" / "amoebanet" / "checkpoints").mkdir(parents=True)
    settings = read_options(Options, started(tmp_path)[5:], ("model",)).settings
    assert settings.run.resume == settings.run.run_dir == "runs/amoebanet" and settings.model.name is None


def test_the_dockerfile_installs_what_there_is() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    installed = []
    for line in re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE):
        words = shlex.split(line)
        assert words[:6] == ["python", "-m", "pip", "install", "--no-cache-dir", "--constraint"], line
        installed += [words[7]]
        assert (words[6], len(words)) == ("constraints.txt", 8), line
    assert installed[0] == "torch"
    extras = Requirement(f"halocline{installed[1].removeprefix('.')}").extras
    assert extras and extras <= set(project["optional-dependencies"])
    assert 'ENTRYPOINT ["python", "-m", "halocline"]' in DOCKERFILE


@pytest.mark.parametrize("line", re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE))
def test_the_dockerfile_copies_what_there_is(line: str) -> None:
    for name in line.split()[:-1]:
        assert (ROOT / name).exists(), name
