"""`halocline verify` as a user calls it, on real processes; and what it says to bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from halocline.cli import main

USER_MODEL = """
from torch import nn


class Roll(nn.Module):
    def forward(self, x):
        return x.cumsum(-1)


def dense():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1))


def rolled():
    return [lambda: nn.Conv2d(3, 4, 3, padding=1), Roll]
"""


def verify(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In a directory of the user's, as a command."""
    (directory / "my_model.py").write_text(USER_MODEL)
    code = "import sys; from halocline.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, "verify", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_tiled_gems_plan_is_exact(tmp_path: Path) -> None:
    flags = "--split-size 2 --num-spatial-parts 2 --times 2 --image-size 21,18 --json"
    done = verify(tmp_path, "small-cnn", *flags.split())
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["exact"] is True
    assert facts["processes"] == 3
    assert 0 < facts["worst"] <= 1e-10
    assert facts["loss"] <= facts["worst"]
    assert set(facts["gradients"]) == set(facts["parameters"])
    assert "0.1.running_mean" in facts["buffers"]


def test_a_users_own_model_by_a_plan_file(tmp_path: Path) -> None:
    assert (
        main(["plan", "show", "--split-size", "2", "--parts", "2", "--layers", "4", "--out", str(tmp_path / "p.toml")])
        == 0
    )
    done = verify(tmp_path, "my_model:dense", "--plan", "p.toml", "--batch-size", "5", "--dtype", "float32")
    assert done.returncode == 0, done.stderr
    assert "exact: my_model:dense under 1f1b on 2 processes" in done.stdout
    assert "gradient" in done.stdout and "buffer" in done.stdout


def test_what_cannot_be_exact_is_refused_in_one_line(tmp_path: Path) -> None:
    done = verify(tmp_path, "my_model:rolled", "--split-size", "1", "--num-spatial-parts", "2")
    assert done.returncode == 2
    assert "cumsum" in done.stderr
    assert done.stderr.strip().count("\n") == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("verify", "no model to verify"),
        ("verify smal-cnn", "did you mean small-cnn?"),
        ("verify small-cnn --dtype float16", "use float64 or float32"),
        ("verify small-cnn --steps 0", "use 1 or more"),
        ("verify no_such_thing:make", "there is no module no_such_thing"),
        ("verify small-cnn --split-size 9", "9"),
    ],
)
def test_bad_input_is_answered_in_one_line(words: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert answer in err
    assert err.strip().count("\n") == 0
