"""From settings to a model and a plan: what is left open follows from the model, and what does not fit is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halocline.plan import Plan, Stage
from halocline.train.planning import model_of, plan_of, plan_to_train, with_batch
from halocline.train.settings import Settings


def test_nothing_said_is_one_process() -> None:
    def stages(**fields: Any) -> tuple[Stage, ...]:
        settings = Settings.of(model="small-cnn", **fields)
        return plan_of(settings, model_of(settings)).stages

    assert stages() == (Stage((0, 8)),)
    assert stages(batch_size=4, replicas=2) == (Stage((0, 8)),)
    assert stages(tiles="2x2") == (Stage((0, 8), tiles=(2, 2)),)
    assert stages(schedule="gpipe") == stages(balance="uniform") == (Stage((0, 4)), Stage((4, 8)))
    assert [s.layers for s in stages(balance="3,5")] == [(0, 3), (3, 8)]


def test_stages_by_parameters() -> None:
    settings = Settings.of(model="small-cnn", stages=3, balance="parameters")
    # 616, 1184, 0, 900, 2640, 1744, 32 and 170 parameters
    assert [s.layers for s in plan_of(settings, model_of(settings)).stages] == [(0, 4), (4, 5), (5, 8)]


def test_a_batch_where_none_is_said() -> None:
    assert with_batch(Plan.uniform(2, microbatches=3)).batch == 33
    assert with_batch(Plan((Stage((0, 1), lanes=3),), microbatches=5)).batch == 45
    assert with_batch(Plan.uniform(2, batch=7)).batch == 7


def test_a_plan_file_and_flags_that_contradict_it(tmp_path: Any) -> None:
    path = tmp_path / "plan.toml"
    Plan.uniform(8, batch=4, image=(16, 16)).save(path)
    for fields, said in (
        ({"stages": 3}, "--stages 3 contradicts"),
        ({"batch_size": 5}, "--batch-size 5 contradicts"),
        ({"image_size": "8"}, "--image-size (8, 8) contradicts"),
    ):
        settings = Settings.of(model="small-cnn", plan=str(path), **fields)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(")", r"\)")):
            plan_of(settings, model_of(settings))
    settings = Settings.of(model="small-cnn", plan=str(path), batch_size=4)
    assert plan_of(settings, model_of(settings)).batch == 4


def test_layers_may_be_said_and_must_be_right() -> None:
    assert model_of(Settings.of(model="small-cnn", layers=8)).name == "small-cnn"
    with pytest.raises(ValueError, match="--layers 9 but small-cnn has 8 layers"):
        model_of(Settings.of(model="small-cnn", layers=9))
    with pytest.raises(ValueError, match="no model to train"):
        model_of(Settings.of())


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
        model = model_of(Settings.of(model=f"own_classes:{made}", **fields))
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


def test_a_plan_for_volumes_is_refused_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "volumes.toml"
    path.write_text("stages = [{layers = [0, 5], tiles = [2, 1, 2]}]")
    settings = Settings.of(model="small-cnn", plan=str(path))
    with pytest.raises(ValueError, match=r"for images of 3 dims, and the data .* has 2: .* halocline\.Engine"):
        plan_to_train(settings, model_of(settings))
