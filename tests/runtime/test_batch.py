"""A rank reads only its own pixels, evaluates batches of any size, keeps activations in host memory, tells observers:
on real processes, against one device.
"""

from __future__ import annotations

import pytest

from halocline.plan import Plan
from harness.checks.reading import by_pieces, evaluated, observed, offloaded
from harness.ranks import on_processes
from harness.teams import LANES, ONE, Team, plan_of, tiles

PLANS: dict[str, tuple[str, Plan]] = {
    "tiles, then one": ("cnn", plan_of([tiles(2, 2), ONE], "1f1b")),
    "tiles to the loss": ("dense", plan_of([tiles(1, 2), tiles(1, 2)], "gpipe")),
    "gems": ("cnn", plan_of([tiles(1, 3), ONE], "gems", 4)),
    "lanes and replicas": ("mlp", plan_of([ONE, LANES], replicas=2, microbatches=2)),
}


@pytest.mark.parametrize("name", PLANS)
def test_steps_from_what_each_rank_reads_are_exact(name: str) -> None:
    model, plan = PLANS[name]
    found = on_processes(plan.world_size, by_pieces, model, plan.to_toml(), 8)
    assert max(worst for worst, _, _ in found) < 1e-10
    # Together, the ranks read every pixel once; with two pipes each half of the batch goes another way.
    inputs, targets = sum(i for _, i, _ in found), sum(t for _, _, t in found)
    assert inputs == pytest.approx(1)
    last = plan.stages[-1]
    assert targets == pytest.approx(1 if last.tile_count == 1 or model == "dense" else last.tile_count)


@pytest.mark.parametrize("name", PLANS)
def test_evaluation_equals_one_device_for_any_batch(name: str) -> None:
    model, plan = PLANS[name]
    sizes = [8, 7, 3, 1] if name != "lanes and replicas" else [8, 9, 5, 4]
    for found in on_processes(plan.world_size, evaluated, model, plan.to_toml(), sizes):
        for loss, right in found:
            assert loss < 1e-10
            assert right == 0


def test_observers_are_told_of_every_instruction() -> None:
    plan = plan_of([ONE, ONE, ONE], "zb-h1")
    assert on_processes(3, observed, "mlp", plan.to_toml()) == [True] * 3


@pytest.mark.parametrize("team", [ONE, tiles(1, 2)])
def test_offloaded_activations_are_exact(team: Team) -> None:
    plan = plan_of([team, ONE])
    for found in on_processes(plan.world_size, offloaded, "cnn", plan.to_toml()):
        assert max(found.values()) < 1e-10
