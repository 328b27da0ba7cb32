"""Parameters divided over the ranks that share a stage: FSDP2, a layer at a time, under a schedule of microbatches.

A layer's parameters are gathered for each of its forwards and backwards and let go after it. Gradients add up on each
rank over the microbatches and are summed and divided with the stage's last backward, where the schedule without
sharding would have its reduction. What is tied stays whole on every rank and is summed as ever.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from halocline.plan.layout import Layout
from halocline.plan.stage import PARAMETERS
from halocline.runtime.processes.world import World
from halocline.schedule.instruction import BACKWARD, Instruction

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DATA, TENSOR = "data", "tensor"
"""The axes of a stage's mesh: ranks that share its parameters, and ranks that share each matrix."""


def check_sharding(layout: Layout) -> None:
    plan = layout.plan
    for number, stage in enumerate(plan.stages):
        if stage.shard != PARAMETERS:
            continue
        if plan.pipes == 2:
            raise ValueError(
                f"stages[{number}].shard = 'parameters' and pipes = 2: ranks of two pipes would gather parameters in "
                f"different orders; use shard = 'optimizer', or one pipe"
            )
        if plan.schedule == "zb-h1":
            raise ValueError(
                f"stages[{number}].shard = 'parameters' and schedule = 'zb-h1', which runs backwards in two "
                f"halves: use shard = 'optimizer', or schedule 1f1b"
            )
        if stage.tile_count * stage.lanes > 1:
            raise ValueError(
                f"stages[{number}] has tiles = {list(stage.tiles)}, lanes = {stage.lanes} and shard = 'parameters', "
                f"which replicas can share: use shard = 'optimizer', or replicas"
            )


def mesh_of(world: World, layout: Layout, stage: int, data: bool = True) -> DeviceMesh:
    """The ranks that have a stage, as a mesh: those that share its parameters if `data`, and those that share each
    matrix if any do."""
    from torch.distributed.device_mesh import DeviceMesh

    axes = (DATA,) * data + (TENSOR,) * (layout.plan.stages[stage].tensor > 1)
    groups = layout.tensor_groups(stage)
    along = {
        DATA: layout.sharers(stage, layout.tensor_index(world.rank, stage)),
        TENSOR: next(group for group in groups if world.rank in group),
    }
    found = [world.group(along[axis]) for axis in axes]
    if len(axes) == 1:
        return DeviceMesh.from_group(found[0], world.device.type, mesh_dim_names=axes)
    return DeviceMesh.from_group(found, world.device.type, mesh=torch.tensor(groups), mesh_dim_names=axes)


class Shadow:
    """A stage's layers without data, from which shapes are found where the real ones are divided."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.layers: list[tuple[str, nn.Module]] = []

    def add(self, name: str, layer: nn.Module) -> None:
        """Note a layer that is still whole."""
        memo: dict[int, Any] = {id(b): self.mode.from_tensor(b) for b in layer.buffers()}
        for parameter in layer.parameters():
            memo[id(parameter)] = nn.Parameter(self.mode.from_tensor(parameter.detach()), parameter.requires_grad)
        self.layers.append((name, copy.deepcopy(layer, memo)))


def _own_memory(layer: nn.Module, args: Any, output: Any) -> Any:
    """What leaves a layer is no view: FSDP cannot follow one that the next layer changes in place."""
    return tree_map_only(torch.Tensor, lambda made: made.clone() if made._is_view() else made, output)


class Sharding:
    """The stages of one rank whose parameters are divided."""

    def __init__(self, world: World, layout: Layout) -> None:
        check_sharding(layout)
        mine = {role.stage for role in layout.roles(world.rank)}
        self.meshes = {
            stage: mesh_of(world, layout, stage)
            for stage in sorted(mine)
            if layout.plan.stages[stage].shard == PARAMETERS and layout.reduces(stage)
        }
        self.shadows = {stage: Shadow() for stage in self.meshes}
        self.layers: dict[int, list[Any]] = {stage: [] for stage in self.meshes}
        self._ends: set[Instruction] = set()

    def add(self, stage: int, layer: nn.Module, tied: set[nn.Parameter]) -> None:
        """Divide a layer, but for the parameters that are `tied`."""
        from torch.distributed.fsdp import fully_shard

        if all(p in tied for p in layer.parameters()):
            return
        layer.register_forward_hook(_own_memory)
        mesh = self.meshes[stage]
        axis = mesh[DATA] if mesh.ndim > 1 else mesh
        sharded: Any = fully_shard(layer, mesh=axis, reshard_after_forward=True, ignored_params=tied)
        sharded.set_gradient_divide_factor(1.0)  # gradients are sums here, as everywhere
        sharded.set_force_sum_reduction_for_comms(True)
        self.layers[stage].append(sharded)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """All parameters whole for a while, where ranks may run different numbers of forwards."""
        every = [layer for layers in self.layers.values() for layer in layers]
        for layer in every:
            layer.unshard()
            layer.set_reshard_after_forward(False)
        try:
            yield
        finally:
            for layer in every:
                layer.reshard()
                layer.set_reshard_after_forward(True)

    def watch(self, instructions: Sequence[Instruction]) -> None:
        """Learn which backwards are the last of their stages."""
        backwards = {i.stage: i for i in instructions if i.kind == BACKWARD}
        self._ends = set(backwards.values())

    def prepare(self, backward: Instruction) -> None:
        """Gradients are summed over ranks with the last backward of a stage, and only there."""
        for layer in self.layers.get(backward.stage, ()):
            layer.set_requires_gradient_sync(backward in self._ends)
            layer.set_is_last_backward(backward in self._ends)
