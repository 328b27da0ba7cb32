"""`halocline verify` as a user calls it, on real processes; and what it says to bad input."""

from __future__ import annotations

import json

import pytest

from halocline.cli import main
from harness.processes import Ended, typed

USER_MODEL = """
from torch import nn


class Exponent(nn.Module):
    def forward(self, x):
        return x.matrix_exp()


def dense():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1))


def exponents():
    return [lambda: nn.Conv2d(3, 4, 3, padding=1), Exponent]


class Sequence(nn.Module):
    # Pixels as a sequence whose second dim are the samples: its gradient's strides fit two formats for one sample.
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x.permute(2, 3, 0, 1)).tanh().permute(2, 3, 0, 1)


def sequence(norm):
    return nn.Conv2d(3, 4, 3, padding=1), norm, Sequence(), nn.Conv2d(4, 3, 3, padding=1)


def sequences():
    return nn.Sequential(*sequence(nn.BatchNorm2d(4)), *sequence(nn.InstanceNorm2d(4)))


class Nudged(nn.Module):
    # Another result on tiles than on one device.
    def forward(self, x):
        return x if type(x).__name__ == "Tensor" else x * (1 + 1e-6)


def nudged():
    return nn.Sequential(Nudged(), *sequence(nn.BatchNorm2d(4)))
"""


COMMANDS = {
    "gems": "small-cnn --split-size 2 --num-spatial-parts 2 --times 2 --image-size 21,18 --json",
    "plan": "my_model:dense --plan p.toml --batch-size 5 --dtype float32",
    "refused": "my_model:exponents --split-size 1 --num-spatial-parts 2",
    "misread": "my_model:sequences --split-size 1 --batch-size 1 --num-spatial-parts 2 --image-size 8,6",
    "misread, json": "my_model:sequences --split-size 3 --balance 2,4,2 --batch-size 1 --image-size 8,6 --json",
    "misread there, too": "my_model:sequences --split-size 2 --batch-size 1 --num-spatial-parts 2 --image-size 8,6",
    "misread and wrong": "my_model:nudged --split-size 1 --batch-size 1 --num-spatial-parts 2 --image-size 8,6 --json",
    "wrong": "my_model:nudged --split-size 1 --batch-size 2 --num-spatial-parts 2 --image-size 8,6",
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


@pytest.mark.slow
def test_one_device_whose_norms_torch_misreads_is_no_reference(verified: dict[str, Ended]) -> None:
    """With one sample torch's CPU kernel took a norm's gradient for one in another memory format on one device, and a
    plan on tiles, which was right, was NOT EXACT."""
    done = verified["misread"]
    assert done.code == 0, done.out + done.err
    *_, verdict, why = done.out.strip().splitlines()
    assert verdict.startswith("exact: my_model:sequences under layer on 2 processes differs from one device with its")
    assert "misreads the gradient of norms 1, 5 on one device" in why
    assert "too" not in why


@pytest.mark.slow
def test_a_misread_reference_is_a_field_of_the_json(verified: dict[str, Ended]) -> None:
    """Without tiles, where what a stage receives from the next happens to be read right."""
    done = verified["misread, json"]
    assert done.code == 0, done.out + done.err
    facts = json.loads(done.out)
    assert facts["exact"] and facts["worst"] <= 1e-10
    assert facts["misread"]["norms"] == ["1", "5"]
    assert facts["misread"]["one_device"] > 1e-3
    assert facts["misread"]["on_ranks"] == []
    assert "rounding" not in facts


@pytest.mark.slow
def test_norms_that_torch_misreads_on_the_processes_as_well(verified: dict[str, Ended]) -> None:
    done = verified["misread there, too"]
    assert done.code == 1, done.out + done.err
    *_, verdict, why = done.out.strip().splitlines()
    assert verdict.startswith("NOT EXACT")
    assert "misreads the gradient of norms 1, 5 on one device" in why
    assert "On this plan's processes it misreads norm 5, too: train with two or more samples per microbatch" in why


@pytest.mark.slow
def test_a_wrong_plan_is_not_excused_by_a_misread_reference(verified: dict[str, Ended]) -> None:
    done = verified["misread and wrong"]
    assert done.code == 1, done.out + done.err
    facts = json.loads(done.out)
    assert 1e-10 < facts["worst"] < 1e-4 < facts["misread"]["one_device"]
    assert facts["misread"]["norms"] == ["2"]
    assert facts["rounding"] < 1e-10


@pytest.mark.slow
def test_a_wrong_plan_beside_a_sound_reference(verified: dict[str, Ended]) -> None:
    done = verified["wrong"]
    assert done.code == 1, done.out + done.err
    assert "NOT EXACT: my_model:nudged under layer on 2 processes differs from one device by" in done.out
    assert "misreads" not in done.out
    assert "One device differs from itself" in done.out


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
