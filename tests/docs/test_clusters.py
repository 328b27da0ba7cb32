"""docs/clusters.md: its commands are commands, with as many processes as their plans need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halocline.cli.options import read_options
from halocline.cli.simulate import Options as Simulate
from halocline.cli.train import Options as Train
from halocline.runtime.processes.environment import LAUNCHERS

TEXT = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (\S+) (.*)halocline train (.*)$", TEXT, re.MULTILINE)


def test_every_launcher_has_a_command() -> None:
    assert {"mpirun", "mpirun_rsh", "mpiexec", "torchrun"} <= {launcher for launcher, _, _ in COMMANDS}


@pytest.mark.parametrize(("launcher", "words", "flags"), COMMANDS)
def test_a_command_starts_what_its_plan_needs(launcher: str, words: str, flags: str) -> None:
    needed = read_options(Train, flags.split(), ("model",)).settings.plan.shape.world_size
    nodes = re.search(r"--nnodes (\d+) --nproc-per-node (\d+)", words)
    number = re.search(r"-(?:np|n) (\d+)", words)
    if nodes is not None:
        assert int(nodes[1]) * int(nodes[2]) == needed
    elif number is not None:
        assert int(number[1]) == needed
    else:
        assert launcher == "docker"


def test_the_simulation_it_names() -> None:
    (flags,) = re.findall(r"`halocline simulate (.*?)`", TEXT)
    assert read_options(Simulate, flags.split()).costs.forward == "1,1,2,2"


def test_the_table_has_every_launchers_names() -> None:
    for names in LAUNCHERS:
        row = next(line for line in TEXT.splitlines() if f"`{names.rank}`" in line)
        stem = names.rank.removesuffix("RANK")
        for name in (names.size, names.local_rank):
            assert f"`{name}`" in row or f"`_{name.removeprefix(stem)}`" in row, name
