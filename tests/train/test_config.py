"""Settings: every mistake is answered with one line that has the value and a fix, without loading torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from halocline.train.config import Config

from halocline.plan import Plan, Stage
from halocline.train.planning import accumulated, model_of, plan_of, with_batch

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
        Config(**fields)
    said = str(caught.value)
    assert named in said and fix in said and "\n" not in said
    assert all(str(value) in said for value in fields.values())


def test_options_of_the_model() -> None:
    config = Config(num_filters=16, heads=2, model_options="base_width=8,norm=group,dropout=0.5,tied=false")
    assert config.options_of_model == {
        "num_filters": 16,
        "heads": 2,
        "base_width": 8,
        "norm": "group",
        "dropout": 0.5,
        "tied": False,
    }
    with pytest.raises(ValueError, match="'wide', which is no name=value"):
        _ = Config(model_options="wide").options_of_model


def test_nothing_said_is_one_process_and_spatial_flags_are_now_dls() -> None:
    def stages(**fields: Any) -> tuple[Stage, ...]:
        config = Config(model="small-cnn", **fields)
        return plan_of(config, model_of(config)).stages

    assert stages() == (Stage((0, 8)),)
    assert stages(batch_size=4, dp=2) == (Stage((0, 8)),)
    assert stages(num_spatial_parts="4") == (Stage((0, 4), tiles=(2, 2)), Stage((4, 8)))
    assert [s.layers for s in stages(balance="3,5")] == [(0, 3), (3, 8)]


def test_stages_by_parameters() -> None:
    config = Config(model="small-cnn", split_size=3, partition_method="parameters")
    # 616, 1184, 0, 900, 2640, 1744, 32 and 170 parameters
    assert [s.layers for s in plan_of(config, model_of(config)).stages] == [(0, 4), (4, 5), (5, 8)]


def test_a_batch_where_none_is_said() -> None:
    assert with_batch(Plan.uniform(2, microbatches=3)).batch == 33
    assert with_batch(Plan((Stage((0, 1), lanes=3),), microbatches=5)).batch == 45
    assert with_batch(Plan.uniform(2, batch=7)).batch == 7


def test_accumulation_is_more_microbatches_of_the_same_size() -> None:
    plan = accumulated(Plan.uniform(2, microbatches=3, batch=6), 4)
    assert (plan.microbatches, plan.batch) == (12, 24)
    gems = accumulated(Plan.uniform(2, schedule="gems", pipes=2, microbatches=4, passes=2, batch=8), 3)
    assert (gems.microbatches, gems.passes, gems.batch) == (12, 6, 24)


def test_a_plan_file_and_flags_that_contradict_it(tmp_path: Any) -> None:
    path = tmp_path / "plan.toml"
    Plan.uniform(8, batch=4, image=(16, 16)).save(path)
    for fields, said in (
        ({"split_size": 3}, "--split-size 3 beside"),
        ({"batch_size": 5}, "--batch-size 5 contradicts"),
        ({"image_size": "8"}, "--image-size (8, 8) contradicts"),
    ):
        config = Config(model="small-cnn", plan=str(path), **fields)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(")", r"\)")):
            plan_of(config, model_of(config))
    config = Config(model="small-cnn", plan=str(path), batch_size=4)
    assert plan_of(config, model_of(config)).batch == 4


def test_layers_may_be_said_and_must_be_right() -> None:
    assert model_of(Config(model="small-cnn", layers=8)).name == "small-cnn"
    with pytest.raises(ValueError, match="--layers 9 but small-cnn has 8 layers"):
        model_of(Config(model="small-cnn", layers=9))
    with pytest.raises(ValueError, match="no model to train"):
        model_of(Config())


OWN = """
from torch import nn


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class Looks(nn.Module):
    def forward(self, x):
        return x if x.sum().item() > 0 else -x


def make(num_classes=3, channels=1):
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))


def silent():
    return [Looks, nn.Flatten, lambda: nn.LazyLinear(2)]


def fixed():
    return [nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)]


def many():
    return [nn.Flatten(), nn.Linear(3 * 8 * 8, 37)]


def pair():
    return [nn.Conv2d(3, 4, 3), Pair()]


def image():
    return [nn.Conv2d(3, 4, 3)]
"""


def test_a_model_of_ones_own_has_the_classes_and_channels_it_is_made_with(tmp_path: Any, monkeypatch: Any) -> None:
    """Bare layers were taken for ten classes and three channels, and the loss failed on a class they do not have."""
    (tmp_path / "own_classes.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def sizes(made: str, **fields: Any) -> tuple[int, int]:
        model = model_of(Config(model=f"own_classes:{made}", **fields))
        return model.classes, model.channels

    assert sizes("make") == (3, 1)
    assert sizes("make", num_classes=12, model_options="channels=4") == (12, 4)
    assert sizes("fixed") == (2, 3)
    assert sizes("many", image_size=8) == (37, 3)
    assert sizes("many", image_size=8, num_classes=5) == (5, 3)
    assert sizes("silent") == (10, 3)  # cannot run without data
    for made, fields, said in (
        ("fixed", {"num_classes": 5}, "--num-classes 5 but own_classes:fixed answers with 2: give it an option"),
        ("pair", {}, "own_classes:pair answers an image with a tuple.*names its task and its loss"),
        ("image", {"image_size": "9,7"}, "own_classes:image answers an image with 4 x 7 x 5"),
    ):
        with pytest.raises(ValueError, match=said):
            sizes(made, **fields)  # type: ignore[arg-type]


def test_settings_load_without_torch() -> None:
    code = "import sys, halocline.train.config, halocline.cli.train; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_plan_for_volumes_is_refused_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "volumes.toml"
    path.write_text("stages = [{layers = [0, 5], tiles = [2, 1, 2]}]")
    config = Config(model="small-cnn", plan=str(path))
    with pytest.raises(ValueError, match=r"for images of 3 dims, and the data .* has 2: .* halocline\.Engine"):
        plan_of(config, model_of(config))
