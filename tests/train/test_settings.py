"""Settings: every mistake is answered with one line that has the value and a fix, without loading torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halocline.train.settings import Settings

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"optimizer": "adam"}, "optimizer", "did you mean 'adamw'?"),
    ({"lr_schedule": "cosin"}, "lr_schedule", "did you mean 'cosine'?"),
    ({"dtype": "float16"}, "dtype", "bf16"),
    ({"device": "gpu"}, "device", "cuda"),
    ({"bad_files": "ignore"}, "bad_files", "skip"),
    ({"nan": "ignore"}, "nan", "skip"),
    ({"objective": "next"}, "objective", "causal"),
    ({"steps": 0}, "steps", "1 or more"),
    ({"epochs": -1}, "epochs", "1 or more"),
    ({"keep": 0}, "keep", "1 or more"),
    ({"accumulate": 0}, "accumulate", "1 or more"),
    ({"save_every": -2}, "save_every", "use 0"),
    ({"eval_every": 0}, "eval_every", "1 or more"),
    ({"lr": 0.0}, "lr", "above 0"),
    ({"lr": float("nan")}, "lr", "above 0"),
    ({"clip": -1.0}, "clip", "above 0"),
    ({"momentum": 1.0}, "momentum", "less than 1"),
    ({"evaluation_fraction": 1.5}, "evaluation_fraction", "less than 1"),
    ({"final_lr": 2.0}, "final_lr", "share"),
    ({"warmup": -3}, "warmup", "use 0"),
    ({"seed": 2**64}, "seed", "a smaller number"),
    ({"weight_decay": -0.1}, "weight_decay", "use 0"),
    ({"epochs": 2, "steps": 9}, "epochs = 2 and steps = 9", "one of them"),
]


@pytest.mark.parametrize(("fields", "named", "fix"), BAD)
def test_bad_settings(fields: dict[str, Any], named: str, fix: str) -> None:
    with pytest.raises(ValueError) as caught:
        Settings.of(**fields)
    said = str(caught.value)
    assert named in said and fix in said and "\n" not in said
    assert all(str(value) in said for value in fields.values())


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"stage": 2}, "setting = 'stage' is unknown: did you mean 'stages'?"),
        ({"split_size": 2}, "split_size is now-dl's: say stages"),
        ({"tp": 2}, "tp is Merak's: say tensor"),
        ({"fp16": True}, "fp16 needs its loss scaled, which is not done here: use --bf16"),
        ({"energy_breakdown": True}, "energy_breakdown is Merak's and does nothing: leave it out"),
        ({"stages": "2"}, "stages = '2' is not a whole number: give 4"),
        ({"stages": 2.0}, "stages = 2.0 is not a whole number: give 4"),
        ({"lr": "fast"}, "lr = 'fast' is not a number: give 2.5"),
        ({"dry_run": True}, "setting = 'dry_run' is unknown"),
        ({"tiles": 2.5}, "tiles = 2.5 is not text: give a word"),
        ({"verbose": 1}, "verbose = 1 is not true or false: give true"),
        ({"lr": None}, "lr = None is not a number: give 2.5"),
        ({"data": None}, "data = None is not text: give a word"),
    ],
)
def test_settings_of_unknown_names_and_wrong_types(said: dict[str, Any], answer: str) -> None:
    with pytest.raises(ValueError) as caught:
        Settings.of(**said)
    assert str(caught.value).startswith(answer) and "\n" not in str(caught.value)


def test_settings_by_keyword() -> None:
    settings = Settings.of(model="resnet-v1-20", stages=2, tiles=(2, 2), image_size=64, balance=[3, 4], lr=1)
    assert (settings.plan.tiles, settings.plan.image_size, settings.plan.balance) == ("2x2", "64", "3,4")
    assert (settings.optimizer.lr, settings.model.name) == (1, "resnet-v1-20")
    assert settings.said == {"model", "stages", "tiles", "image_size", "balance", "lr"}
    assert settings.saying({"lr": 0.1}).said == settings.said
    assert settings.but(seed=3).said == settings.said, "of what is only changed nobody said anything"


def test_a_file_repeats_settings(tmp_path: Path) -> None:
    settings = Settings.of(
        model="small-cnn", lr=0.5, stages=2, tiles="2x2", run_dir="here", steps=3, mean="0.5,0.5,0.5"
    )
    (tmp_path / "run.toml").write_text(settings.to_toml())
    again = Settings.load(tmp_path / "run.toml")
    assert again == settings.but(run_dir=None), "which run it is stands in no file"
    assert "[optimizer]" in settings.to_toml() and "run_dir" not in settings.to_toml()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[plan\n", "is not valid TOML"),
        ("[plans]\nstages = 2\n", "table = 'plans' is unknown: did you mean 'plan'?"),
        ("[plan]\nstage = 2\n", "plan key = 'stage' is unknown: did you mean 'stages'?"),
        ("[run]\nstages = 2\n", "stages stands in [run]: it belongs in [plan]"),
        ("plan = 2\n", "plan = 2 is not a table: write [plan] above its keys"),
        ("stages = 2\n", "is a plan, which names no model: write halocline train MODEL --plan "),
        ("steps = 2\n", "table = 'steps' is unknown: one of model, data, plan, optimizer, energy, run"),
        (
            '[data]\ndata = "cifar10:"\n',
            "data = 'cifar10:' names no folder: write DIR, cifar10:DIR, cifar100:DIR, synthetic or lesions",
        ),
        ('[plan]\nstages = "two"\n', "stages = 'two' is not a whole number: give 4"),
        ("[run]\nsteps = 0\n", "steps = 0 is below 1"),
        ("[run]\nsteps = 2\nepochs = 3\n", "epochs = 3 and steps = 2 both say when to end"),
        ('[plan]\nschedule = "1f2b"\n', "did you mean '1f1b'?"),
    ],
)
def test_a_file_with_a_mistake(text: str, answer: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        Settings.load(path)
    said = str(caught.value)
    assert said.startswith(str(path)) and answer in said and "\n" not in said


def test_options_of_the_model() -> None:
    settings = Settings.of(num_filters=16, heads=2, model_options="base_width=8,norm=group,dropout=0.5,tied=false")
    assert settings.options_of_model == {
        "num_filters": 16,
        "heads": 2,
        "base_width": 8,
        "norm": "group",
        "dropout": 0.5,
        "tied": False,
    }
    with pytest.raises(ValueError, match="'wide', which is no name=value"):
        _ = Settings.of(model_options="wide").options_of_model


def test_settings_load_without_torch() -> None:
    code = "import sys, halocline.train.settings, halocline.cli.train; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
