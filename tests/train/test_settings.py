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


