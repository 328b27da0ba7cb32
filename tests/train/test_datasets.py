"""Data and models of a user's own, as they are in torch, in the trainer: the same under every plan."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halocline.data.dataset import INPUT, TARGET
from halocline.models.model import Model
from halocline.plan import Plan, Stage
from halocline.runtime.processes.world import World
from halocline.train import Settings, Trainer
from halocline.train.datasets import Items, as_dataset
from harness.ranks import on_processes


class Pictures:
    """As torch's users write one: an image and its class, shifted by chance."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, sample: int) -> tuple[Tensor, int]:
        image = torch.full((3, 8, 6), sample / 16) + torch.arange(6)
        return image.roll(random.randrange(6), -1) + torch.rand(1), sample % 4


def layers() -> list[Any]:
    return [lambda: nn.Conv2d(3, 4, 3, padding=1), nn.Tanh, lambda: nn.AdaptiveAvgPool2d(2), nn.Flatten] + [
        lambda: nn.Linear(16, 4)
    ]


def test_items_are_read_by_box() -> None:
    items = Items(Pictures(), 4, seed=1)
    assert [spec.shape for spec in (*items.inputs, *items.targets)] == [(3, 8, 6), ()]
    whole = items.read(5, INPUT, epoch=2)
    assert torch.equal(items.read(5, INPUT, ((2, 4), (1, 6)), epoch=2), whole[:, 2:4, 1:6])
    assert items.read(5, TARGET, epoch=2) == 1
    again = Items(Pictures(), 4, seed=1)
    assert torch.equal(again.read(5, INPUT, epoch=2), whole), "other ranks draw the same"
    assert not torch.equal(again.read(5, INPUT, epoch=3), whole)
    before = torch.get_rng_state()
    again.read(7, INPUT)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_dataset_is_told() -> None:
    with pytest.raises(ValueError, match=r"sample 0 is a Tensor, not an .input, target.: return the two"):
        Items([torch.zeros(3)], 2, 0)
    uneven = Items([(torch.zeros(3), 1), (torch.zeros(4), 1)], 2, 0)
    with pytest.raises(ValueError, match=r"sample 1 has a input of shape \[4\] and sample 0 one of \[3\]"):
        uneven.read(1, INPUT)
    mine = Items([(torch.zeros(3), 1)], 2, 0)
    assert as_dataset(mine, Model("m", []), 0) is mine and as_dataset(None, Model("m", []), 0) is None


def trained(directory: str, text: str) -> list[float]:
    """What an own model learns of own data in two epochs, and of the end its evaluation."""
    settings = Settings.of(lr=0.05, epochs=2, dtype="float64", device="cpu", run_dir=directory, save_every=0)
    plan, world = Plan.from_toml(text), World.join(deadline=300)
    trainer = Trainer(settings, plan=plan, model=layers(), dataset=Pictures(), evaluation=Pictures(), world=world)
    outcome = trainer.fit()
    return [outcome.step, outcome.loss, outcome.scores["loss"], outcome.scores["accuracy"]]


def test_own_model_and_data_under_plans(tmp_path: Path) -> None:
    known = trained(str(tmp_path / "one"), Plan((Stage((0, 5)),), "layer", 2, batch=4).to_toml())
    assert known[0] == 8
    tiled = Plan((Stage((0, 3), tiles=(1, 3)), Stage((3, 5))), "1f1b", 2, batch=4)
    mirrored = Plan((Stage((0, 3)), Stage((3, 5))), "gems", 2, pipes=2, replicas=2, batch=2)
    for name, plan in (("tiles", tiled), ("gems", mirrored)):
        for found in on_processes(plan.world_size, trained, str(tmp_path / name), plan.to_toml()):
            assert found == pytest.approx(known, rel=1e-10)


def test_layers_and_generated_images(tmp_path: Path) -> None:
    """The classes are those the layers answer with."""
    settings = Settings.of(image_size="8", batch_size=4, steps=1, device="cpu", run_dir=str(tmp_path / "run"))
    trainer = Trainer(settings, model=nn.Sequential(*(layer() for layer in layers())))
    assert trainer.model.classes == 4
    assert trainer.fit().step == 1
