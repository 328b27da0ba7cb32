"""The ranks of a plan as a torch DeviceMesh with the field's names: pp (stages), dp (replicas and lanes), sp (tiles),
tp (tensor ranks). Knows layouts; made only for whoever asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halocline.plan.layout import Layout, Role
from halocline.runtime.processes.world import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("pp", "dp", "sp", "tp")


def ranks_of(layout: Layout) -> torch.Tensor:
    """The ranks as (places, replicas x lanes, tiles, tensor ranks), where every place has a team of one shape."""
    plan = layout.plan
    instead = "use engine.layout, whose teams and roles say which rank is what"
    if plan.pipes > 1:
        raise ValueError(f"pipes = {plan.pipes} put several stages on each rank, which is no mesh: {instead}")
    first = plan.stages[0]
    for number, stage in enumerate(plan.stages):
        if (stage.tile_count, stage.lanes, stage.tensor) != (first.tile_count, first.lanes, first.tensor):
            raise ValueError(
                f"stages[0] has {_team(layout, 0)} and stages[{number}] has {_team(layout, number)}, and a mesh has "
                f"teams of one shape: {instead}"
            )
    shape = plan.places, plan.replicas, first.lanes, first.tile_count, first.tensor
    ranks = torch.empty(shape, dtype=torch.int64)
    for place, replica, lane, tile, tensor in torch.cartesian_prod(*map(torch.arange, shape)).tolist():
        ranks[place, replica, lane, tile, tensor] = layout.rank(Role(replica, 0, place, tile, lane, tensor))
    return ranks.flatten(1, 2)


def _team(layout: Layout, number: int) -> str:
    stage = layout.plan.stages[number]
    return f"{stage.tile_count} tiles x {stage.lanes} lanes x {stage.tensor} tensor ranks"


def mesh_of_plan(world: World, layout: Layout) -> DeviceMesh:
    """The mesh; it makes process groups, so every rank calls this."""
    ranks = ranks_of(layout)
    if world.size == 1 and not torch.distributed.is_initialized():
        raise ValueError("a mesh needs a process group, and this process is alone: start it with torchrun")
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh(world.device.type, ranks, mesh_dim_names=AXES)
