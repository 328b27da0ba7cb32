"""Scores against a plain computation on whole outputs; and on tiles and pipes, the same to the last pixel."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from halocline.models.model import CAUSAL, CLASSIFICATION, SEGMENTATION, Model
from halocline.plan import Plan, Stage
from halocline.train.evaluation import measures, scores
from harness.checks.evaluation import scores_here
from harness.ranks import on_processes


def totals(model: Model, output: Any, target: Any) -> dict[str, float]:
    return {name: float(measure(output, target)) for name, measure in measures(model).items()}


def test_accuracy() -> None:
    model = Model("m", [], CLASSIFICATION, classes=3)
    output = torch.tensor([[1.0, 2, 0], [5, 1, 1], [0, 0, 9], [3, 2, 1]])
    found = totals(model, output, torch.tensor([1, 0, 1, -100]))
    assert scores(model, 0.0, found) == {"accuracy": 2 / 3}  # the last does not count


def test_dice_and_iou_over_the_classes_that_occur() -> None:
    torch.manual_seed(0)
    model = Model("m", [], SEGMENTATION, classes=4)
    output = torch.randn(2, 4, 5, 6)
    output[:, 3] = -9  # neither predicted nor there
    target = torch.randint(0, 3, (2, 5, 6))
    target[0, :2] = -100
    found = scores(model, 0.0, totals(model, output, target))
    predicted, counts = output.argmax(1), target != -100
    dice, iou = [], []
    for c in range(3):
        a, b = (predicted == c) & counts, target == c
        both = (a & b).sum().item()
        dice.append(2 * both / (a.sum() + b.sum()).item())
        iou.append(both / (a | b).sum().item())
    right = ((predicted == target) & counts).sum().item() / counts.sum().item()
    assert found == pytest.approx({"dice": sum(dice) / 3, "iou": sum(iou) / 3, "accuracy": right})


def test_perplexity() -> None:
    assert scores(Model("m", [], CAUSAL), 2.0, {}) == {"perplexity": pytest.approx(math.exp(2))}
    assert math.isfinite(scores(Model("m", [], CAUSAL), 1e9, {})["perplexity"])


PLANS = {
    "tiles": Plan((Stage((0, 6), tiles=(2, 2)),), "layer", 1, batch=3),
    "lanes and pipes": Plan((Stage((0, 2), lanes=2), Stage((2, 6), lanes=2)), "gpipe", 2, batch=4),
}


def test_tiles_and_pipes_give_the_scores_of_one_process(tmp_path: Path) -> None:
    """Sums of pixels are exact, whoever holds which; the last batch is a small one."""
    for name, plan in PLANS.items():
        alone = Plan((Stage((0, 6)),), "layer", plan.microbatches, batch=plan.batch)
        expected = scores_here(str(tmp_path / f"{name} 1"), alone.to_toml())
        for found in on_processes(4, scores_here, str(tmp_path / name), plan.to_toml()):
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-10)
            assert {k: v for k, v in found.items() if k != "loss"} == {k: v for k, v in expected.items() if k != "loss"}
        assert 0 < expected["dice"] < 1
