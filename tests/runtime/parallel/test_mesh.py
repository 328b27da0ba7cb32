"""The mesh of a plan: its axes and ranks, sums along it, and plans that have none."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from halocline.plan import Layout, Plan, Stage
from halocline.runtime import Engine
from halocline.runtime.parallel.mesh import ranks_of
from harness.checks.plans import world
from harness.plan_models import MODELS
from harness.ranks import on_processes
from harness.teams import ONE, plan_of, tiles


def test_the_axes_are_the_fields() -> None:
    stage = {"lanes": 2, "tensor": 2}
    plan = Plan((Stage((0, 1), **stage), Stage((1, 2), **stage)), "1f1b", 2, replicas=2)
    layout = Layout(plan)
    ranks = ranks_of(layout)
    assert ranks.shape == (2, 4, 1, 2)
    assert sorted(ranks.flatten().tolist()) == list(range(16))
    for place, data, tile, tensor in torch.ones_like(ranks).nonzero().tolist():
        (role,) = layout.roles(int(ranks[place, data, tile, tensor]))
        assert (role.stage, role.replica * 2 + role.lane, role.tile, role.tensor) == (place, data, tile, tensor)


def test_chunks_share_a_place() -> None:
    plan = plan_of([ONE, ONE], "interleaved")
    assert ranks_of(Layout(plan)).flatten().tolist() == [0, 1]


def test_plans_without_a_mesh_are_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"4 tiles x 1 lanes x 1 tensor ranks and stages\[1\] has 1 tiles .*engine.lay"
    ):
        ranks_of(Layout(plan_of([tiles(2, 2), ONE])))
    with pytest.raises(ValueError, match=r"pipes = 2 put several stages on each rank, which is no mesh: use"):
        ranks_of(Layout(plan_of([ONE, ONE], "gems")))
    alone = Engine(Plan((Stage((0, 8)),)), MODELS["cnn"][0](), loss=F.cross_entropy)
    with pytest.raises(ValueError, match="this process is alone: start it with torchrun"):
        alone.mesh  # noqa: B018


def along(text: str) -> tuple[dict[str, int], dict[str, float]]:
    """Sizes of the axes, and the sum of ranks along each."""
    engine = Engine(Plan.from_toml(text), MODELS["cnn"][0](), loss=F.cross_entropy, world=world())
    sums = {}
    for axis in engine.mesh.mesh_dim_names or ():
        number = torch.tensor([float(engine.world.rank)])
        dist.all_reduce(number, group=engine.mesh.get_group(axis))
        sums[axis] = number.item()
    return {axis: engine.mesh[axis].size() for axis in sums}, sums


def test_groups_along_the_axes() -> None:
    answers = on_processes(4, along, plan_of([ONE, ONE], replicas=2).to_toml())
    assert answers[1] == ({"pp": 2, "dp": 2, "sp": 1, "tp": 1}, {"pp": 1.0, "dp": 4.0, "sp": 1.0, "tp": 1.0})
    answers = on_processes(4, along, plan_of([tiles(1, 2), tiles(1, 2)]).to_toml())
    assert answers[2] == ({"pp": 2, "dp": 1, "sp": 2, "tp": 1}, {"pp": 2.0, "dp": 2.0, "sp": 5.0, "tp": 2.0})
