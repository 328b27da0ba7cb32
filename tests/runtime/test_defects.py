"""The nine ways in which training under now-dl differs from training on one device, each shown not to be ours.

Tiles run on threads of this process, plans on gloo processes; the reference is always one device in float64.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.plan import Plan, Stage
from halocline.runtime import Engine
from halocline.schedule.generate import generate
from halocline.schedule.instruction import BACKWARD, REDUCE
from halocline.tiling.exchanger import NoCommunication
from harness.checks.plans import batch, compare_all, gradients_of, one_step
from harness.plan_models import MODELS
from harness.ranks import assert_close, assert_exact, image, on_processes, on_threads
from harness.teams import LANES, ONE, Team, plan_of, tiles


def assert_plans(size: int, cases: list[tuple[str, Plan, list[int]]]) -> None:
    """Each (model, plan, batch sizes) equals one device."""
    answers = on_processes(size, compare_all, [(model, plan.to_toml(), sizes) for model, plan, sizes in cases])
    for rank, found in enumerate(answers):
        for case, worst in zip(cases, found):
            assert isinstance(worst, dict), f"{case} on rank {rank}:\n{worst}"
            assert max(worst.values()) < 1e-10, f"{case} on rank {rank}: {worst}"


# ------------------------------------------------------------------------------------------------------------- tiles


def test_defect_1_halo_gradients_return() -> None:
    """now-dl never sends the gradients of a halo back, so input gradients are wrong along every seam."""
    conv = nn.Conv2d(2, 3, 5, padding=2).double()
    whole = image((1, 2, 9, 10)).requires_grad_()
    conv(whole).square().sum().backward()

    def gradient(exchanger: Any) -> Tensor:
        mine = image((1, 2, 9, 10)).requires_grad_()
        x = tiling.tile(mine, (1, 2), exchanger)
        x.local.retain_grad()
        conv(x).local.square().sum().backward()
        assert x.local.grad is not None
        return x.local.grad

    left, right = on_threads(2, gradient)
    assert_close(torch.cat([left, right], 3), whole.grad, 1e-12, "the input gradient")
    # What a tile finds without its neighbour is right far from the seam and wrong along it.
    assert whole.grad is not None
    alone = gradient(NoCommunication(0, 2))
    assert not torch.allclose(alone[..., 3:], whole.grad[..., 3:5])


def test_defect_2_weight_gradients_of_tiles_are_summed() -> None:
    """now-dl averages the weight gradients of tiles: with 4 tiles they are exactly a quarter of what they must be."""
    assert_exact(nn.Conv2d(2, 3, 3, padding=1), (2, 2, 8, 8), grid=(2, 2))
    assert_plans(4, [("cnn", plan_of([tiles(2, 2)], microbatches=1), [4, 4])])


def test_defect_4_batch_norm_sees_the_whole_image() -> None:
    """now-dl normalises each tile by its own statistics."""
    assert_exact(nn.BatchNorm2d(3), (2, 3, 8, 9), grid=(2, 2))
    # Tiles that differ in brightness, where the difference would be plain to see.
    ramp = torch.linspace(0, 5, 9, dtype=torch.float64)
    assert_exact(lambda x: F.batch_norm(x + ramp, None, None, training=True), (2, 3, 8, 9), grid=(2, 2))


@pytest.mark.parametrize("counted", [True, False])
def test_defect_5_pooling_at_the_border_of_the_image(counted: bool) -> None:
    """now-dl divides by 9 at borders with count_include_pad=False, and pads max pooling with 0."""
    assert_exact(nn.AvgPool2d(3, 1, 1, count_include_pad=counted), (1, 2, 8, 9), grid=(2, 2))
    assert_exact(lambda x: F.max_pool2d(x - 10, 3, 2, 1), (1, 2, 8, 9), grid=(2, 2))  # all below 0


def test_defect_6_fused_halos_at_borders_and_across_strides() -> None:
    """now-dl pads a fused group once, not after each layer, and counts its halo without the strides inside."""

    class Fused(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x: Tensor) -> Tensor:
            return tiling.run_fused(list(self.layers), x)

    def convolution(stride: int = 1) -> nn.Conv2d:
        return nn.Conv2d(3, 3, 3, stride, 1)

    assert_exact(Fused(convolution(), nn.ReLU(), convolution(), nn.Sigmoid(), convolution()), (1, 3, 12, 13), (2, 2))
    strided = Fused(convolution(), nn.BatchNorm2d(3), convolution(2), nn.MaxPool2d(3, 2, 1), convolution())
    assert_exact(strided, (2, 3, 24, 23), (2, 2), tolerance=1e-11)


# ------------------------------------------------------------------------------------------------------------- plans


def test_defect_3_the_number_of_parts_and_times_changes_no_gradient() -> None:
    """now-dl adds up the mean losses of microbatches, so the gradients' scale depends on --parts and --times."""
    parts = [plan_of([ONE] * 4, "gpipe", microbatches=m, layers=4) for m in (1, 2, 3, 7)]
    times = [plan_of([ONE] * 4, "gems", microbatches=m, layers=4) for m in (2, 4, 6)]
    for found in on_processes(4, gradients_of, [p.to_toml() for p in parts + times], 7):
        first_loss, first = found[0]
        for loss, gradients in found[1:]:
            assert loss == pytest.approx(first_loss, rel=1e-13)
            for name in first:
                if name in gradients:  # with two pipes a rank holds two stages
                    assert_close(gradients[name], first[name], 1e-13, name)


def test_defect_7_replicas_reduce_after_the_last_microbatch() -> None:
    """now-dl reduces gradients after the first of several microbatches, and runs no more than one replica."""
    plan = plan_of([ONE, ONE], microbatches=3, replicas=2)
    for instructions in generate(plan).ranks:
        kinds = [i.kind for i in instructions]
        assert kinds.count(REDUCE) == 1
        assert kinds.index(REDUCE) > max(n for n, kind in enumerate(kinds) if kind == BACKWARD)
    assert_plans(4, [("cnn", plan, [12, 7])])


HARD: dict[str, tuple[int, str, list[Team], str, int]] = {
    "spatial size 2": (6, "cnn", [tiles(2, 2), tiles(1, 2)], "1f1b", 0),
    "six tiles with D2": (6, "cnn", [tiles(2, 3)], "gpipe", 4),
    "vertical slices of cells": (4, "pairs", [tiles(1, 4)], "gpipe", 0),
    "gems with an odd split": (4, "cnn", [tiles(1, 2), ONE, ONE], "gems", 0),
    "local-DP gather": (4, "cnn", [ONE, LANES, ONE], "1f1b", 0),
    "local-DP after tiles": (4, "pairs", [tiles(1, 2), LANES], "1f1b", 0),
}


@pytest.mark.parametrize("name", HARD)
def test_defect_8_combinations_that_were_wrong_or_hung(name: str) -> None:
    """now-dl is wrong or hangs with more than one spatial split, more than 4 tiles with D2, vertical slices of
    AmoebaNet, an odd number of splits under GEMS, and the gather of local-DP."""
    size, model, teams, schedule, fused = HARD[name]
    assert_plans(size, [(model, plan_of(teams, schedule, fused=fused), [8, 5])])


def test_defect_9_any_image_any_machine_and_the_batch_that_was_trained() -> None:
    """now-dl takes square images of a power of two only, wants CUDA and MPI, knows no mixed precision, and counts a
    GEMS step as one batch where it trained on several."""
    height, width = MODELS["cnn"][1][1:]
    assert height != width and height & (height - 1) and width & (width - 1)
    images = plan_of([tiles(1, 2), ONE, ONE], "gems").to_toml()
    for _, samples in on_processes(4, one_step, "cnn", images, 11):
        assert samples == 11
    vectors = plan_of([LANES, ONE, ONE], "gems").to_toml()
    exact, rough = (on_processes(4, one_step, "mlp", vectors, 11, autocast=low) for low in (False, True))
    for (loss, _), (low, samples) in zip(exact, rough):
        assert samples == 11 and low == pytest.approx(loss, rel=0.05) and low != loss


def test_defect_9_one_device_needs_no_process_group() -> None:
    """now-dl starts with MPI or not at all."""
    model = nn.Sequential(nn.Linear(6, 5)).double()
    engine = Engine(Plan((Stage((0, 1)),), microbatches=2), copy.deepcopy(model), loss=F.cross_entropy)
    x, y = batch("mlp", 5, 0)
    result = engine.step(x, y)
    F.cross_entropy(model(x), y).backward()
    assert result.samples == 5
    for parameter, expected in zip(engine.parameters(), model.parameters()):
        assert_close(parameter.grad, expected.grad, 1e-14, "the gradient")
