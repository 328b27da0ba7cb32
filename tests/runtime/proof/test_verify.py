"""The measure of a difference and the reference loop: a wrong gradient is seen, rounding is not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.proof.verify import Differences, compare, difference, reference
from halocline.train.trial import Trial, optimizer

ALONE = Plan.from_flags(split_size=1, parts=3, layers=8)


def trial(model: str = "small_cnn", **fields: Any) -> Trial:
    return Trial(f"halocline.models.small:{model}", ALONE.to_toml(), (16, 12), 7, **fields)


def differences(made: Trial, damage: Any = None) -> Differences:
    """The engine alone in this process against the reference, its layers damaged first if asked."""
    output = made.output_shape()
    settings: Any = {"loss": made.chosen_loss(output), "optimizer": optimizer, "dtype": made.torch_dtype}
    known = reference(made.made().layers, ALONE, made.batches(output), **settings)
    engine = Engine(ALONE, made.made().layers, **settings)
    if damage is not None:
        damage(engine)
    found = compare(engine, made.batches(output), known)
    found.require(known)
    return found


@pytest.mark.parametrize("model", ["small_cnn", "small_mlp"])
def test_one_process_is_one_device(model: str) -> None:
    """Microbatches of unequal size (7 samples in 3), BatchNorm, momentum; dropout by layer and microbatch."""
    found = differences(trial(model, steps=3))
    assert found.worst < 1e-13
    assert len(found.gradients) == len(found.parameters) > 10
    assert (len(found.buffers) > 0) == (model == "small_cnn")


def test_a_wrong_weight_is_seen() -> None:
    def damage(engine: Engine) -> None:
        with torch.no_grad():
            dict(engine.named_parameters())["5.weight"][0, 0, 0, 0] += 1e-6

    found = differences(trial(), damage)
    assert found.loss > 1e-10
    assert found.gradients["5.weight"] > 1e-10
    assert found.parameters["5.weight"] > 1e-8


def test_a_wrong_running_statistic_is_seen() -> None:
    def damage(engine: Engine) -> None:
        dict(engine.named_buffers())["0.1.running_var"].mul_(1 + 1e-6)

    found = differences(trial(), damage)
    assert found.loss < 1e-14
    assert found.buffers["0.1.running_var"] > 1e-8


def test_differences_are_relative_to_the_largest_value() -> None:
    b = torch.tensor([1e-3, 2.0])
    assert difference(b, b) == 0
    assert difference(torch.tensor([1e-3 + 2e-6, 2.0]), b) == pytest.approx(1e-6, rel=1e-3)
    # A gradient that is zero but for rounding is held against the largest of its kind.
    assert difference(torch.tensor([2e-17]), torch.tensor([1e-17]), largest=1.0) < 1e-14
    assert difference(torch.zeros(2), torch.zeros(2)) == 0


def test_what_cannot_be_compared_differs_without_bound() -> None:
    one = torch.ones(1)
    assert difference(None, one) == difference(one, None) == difference(torch.ones(2), one) == math.inf
    assert difference(torch.tensor([math.nan]), one) == math.inf
    assert difference(None, None) == 0


def test_a_tensor_that_no_rank_holds_is_seen() -> None:
    made = trial()
    known = reference(made.made().layers, ALONE, made.batches((2, 10)), loss=F.cross_entropy, dtype=torch.float64)
    found = Differences()
    found.require(known)
    assert found.worst == math.inf
