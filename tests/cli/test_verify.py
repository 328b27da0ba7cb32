"""`halocline verify` as a user calls it, on real processes; and what it says to bad input."""

from __future__ import annotations

import json

import pytest

from copies import Ended, typed
from halocline.cli import main

USER_MODEL = """
from torch import nn


class Exponent(nn.Module):
    def forward(self, x):
        return x.matrix_exp()


def dense():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1))


def exponents():
    return [lambda: nn.Conv2d(3, 4, 3, padding=1), Exponent]
"""


COMMANDS = {
    "gems": "small-cnn --split-size 2 --num-spatial-parts 2 --times 2 --image-size 21,18 --json",
    "plan": "my_model:dense --plan p.toml --batch-size 5 --dtype float32",
    "refused": "my_model:exponents --split-size 1 --num-spatial-parts 2",
}


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """What each command said in a directory of the user's."""
    directory = tmp_path_factory.mktemp("verified")
    (directory / "my_model.py").write_text(USER_MODEL)
    lines = ["plan show --split-size 2 --parts 2 --layers 4 --out p.toml"]
    lines += [f"verify {words}" for words in COMMANDS.values()]
    _, *ended = typed([f"halocline {line}" for line in lines], directory)
    return dict(zip(COMMANDS, ended, strict=True))


@pytest.mark.slow
def test_a_tiled_gems_plan_is_exact(verified: dict[str, Ended]) -> None:
    done = verified["gems"]
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert facts["exact"] is True
    assert facts["processes"] == 3
    assert 0 < facts["worst"] <= 1e-10
    assert facts["loss"] <= facts["worst"]
    assert set(facts["gradients"]) == set(facts["parameters"])
    assert "0.1.running_mean" in facts["buffers"]


@pytest.mark.slow
def test_a_users_own_model_by_a_plan_file(verified: dict[str, Ended]) -> None:
    done = verified["plan"]
    assert done.code == 0, done.err
    assert "exact: my_model:dense under 1f1b on 2 processes" in done.out
    assert "gradient" in done.out and "buffer" in done.out


@pytest.mark.slow
def test_what_cannot_be_exact_is_refused_in_one_line(verified: dict[str, Ended]) -> None:
    done = verified["refused"]
    assert done.code == 2
    assert "matrix_exp" in done.err
    assert done.err.strip().count("\n") == 0, done.err


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
