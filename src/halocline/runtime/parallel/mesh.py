"""The ranks of a plan as a torch DeviceMesh with the field's names: pp (stages), dp (replicas and lanes), sp (tiles),
tp (tensor ranks). Knows layouts; made only for whoever asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halocline.plan.layout import Layout
from halocline.runtime.processes.world import World, quietly

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("pp", "dp", "sp", "tp")


def ranks_of(layout: Layout) -> torch.Tensor:
    """The ranks as (places, replicas x lanes, tiles, tensor ranks), where every place has a team of one shape."""
    plan = layout.plan
    shapes = [(stage.tile_count, stage.lanes, stage.tensor) for stage in plan.stages]
    other = next((number for number, shape in enumerate(shapes) if shape != shapes[0]), None)
    if plan.pipes > 1 or other is not None:
        why = f"pipes = {plan.pipes} put several stages on each rank"
        if other is not None:
            words = ["{} tiles x {} lanes x {} tensor ranks".format(*shapes[n]) for n in (0, other)]
            why = f"stages[0] has {words[0]} and stages[{other}] has {words[1]}"
        raise ValueError(f"{why}, which is no mesh: use engine.layout, whose teams and roles say which rank is what")
    teams = [[layout.team(0, place, replica) for replica in range(plan.replicas)] for place in range(plan.places)]
    return torch.tensor(teams).unflatten(2, shapes[0]).transpose(2, 3).flatten(1, 2)


def mesh_of_plan(world: World, layout: Layout) -> DeviceMesh:
    """The mesh; it makes process groups, so every rank calls this."""
    ranks = ranks_of(layout)
    if world.size == 1 and not torch.distributed.is_initialized():
        raise ValueError("a mesh needs a process group, and this process is alone: start it with torchrun")
    from torch.distributed.device_mesh import DeviceMesh

    with quietly():
        return DeviceMesh(world.device.type, ranks, mesh_dim_names=AXES)
