"""Building what a rank holds: the layers of its stages one after the other, each from its own seed, and divided among
tensor ranks as soon as it is made, so that no rank ever has more than one whole layer; compiled if asked; and what runs
each stage.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.runtime.guards.arguments import refuse_lazy, refuse_sync_batch_norm
from halocline.runtime.guards.shared import apart
from halocline.runtime.layers import Layer, Stages, build
from halocline.runtime.parallel.sharding import TENSOR, Sharding, mesh_of
from halocline.runtime.parallel.tied import Tie, begin_alike, tied_in
from halocline.runtime.processes.world import World
from halocline.runtime.stage import Loss, StageOptions, StageRunner


def build_stages(
    world: World,
    layout: Layout,
    named: Sequence[tuple[str, Layer]],
    ties: Sequence[Tie],
    sharding: Sharding,
    seed: int,
    dtype: torch.dtype | None,
    channels_last: bool,
    sequence: bool = False,
) -> Stages:
    """The layers of the stages that this rank holds. With `sequence`, tensor ranks share tokens where layers can."""
    layers = dict(named)
    begun: dict[str, Tensor] = {}
    stages: dict[int, list[tuple[str, nn.Module]]] = {}
    mine = sorted({role.stage for role in layout.roles(world.rank)})
    for stage, given in zip(mine, apart([[*named[slice(*layout.plan.stages[stage].layers)]] for stage in mine])):
        planned = layout.plan.stages[stage]
        alone = planned.tile_count * planned.lanes == 1
        mesh = None
        if planned.tensor > 1:
            divided = stage in sharding.meshes
            mesh = sharding.meshes[stage][TENSOR] if divided else mesh_of(world, layout, stage, data=False)
        if mesh is not None and planned.lanes > 1 and sequence:
            raise ValueError(
                f"stages[{stage}] has lanes = {planned.lanes}, and tensor ranks that share tokens take lanes = 1: use "
                f"replicas, or no sequence parallelism"
            )
        sizes = {True: 0, False: 0}
        """Parameters in layers that declare a split, and in those that do not."""
        stages[stage] = []
        for name, layer in given:
            module = build(name, layer, seed)
            refuse_lazy(name, module)
            if alone and world.size > 1 and len(layout.plan.stages) > 1:
                refuse_sync_batch_norm(name, module)
            begin_alike(ties, name, module, begun, lambda other: build(other, layers[other], seed))
            if channels_last:
                module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            module = module.to(device=world.device, dtype=dtype)
            if stage in sharding.meshes:
                sharding.shadows[stage].add(name, module)
            if mesh is not None:
                from halocline.runtime.parallel.tensor_parallel import split_layer

                size, last = sum(p.numel() for p in module.parameters()), name == named[-1][0]
                sizes[split_layer(name, module, mesh, last=last, lanes=planned.lanes, sequence=sequence)] += size
            if stage in sharding.meshes:
                sharding.add(stage, module, tied_in(ties, name, module))
            stages[stage].append((name, module))
        if sizes[False] > sizes[True] and world.rank == layout.sharers(stage)[0]:
            logging.getLogger(__name__).warning(
                "stage %d: %d of %d parameters are in layers that declare no split; each of its %d tensor ranks holds "
                "and computes all of those",
                stage,
                sizes[False],
                sum(sizes.values()),
                planned.tensor,
            )
    return stages


def make_runners(
    world: World, layout: Layout, modules: Stages, sharding: Sharding, options: StageOptions, loss: Loss
) -> dict[tuple[int, int], StageRunner]:
    """(pipe, stage) -> what runs it on this rank."""
    plan, runners = layout.plan, {}
    for role in layout.roles(world.rank):
        stage = plan.stages[role.stage]
        team = layout.team(role.pipe, role.stage, world.rank // layout.ranks_per_replica)
        members = team[role.tensor :: stage.tensor]  # who has the other tiles and lanes
        runners[role.pipe, role.stage] = StageRunner(
            role.stage,
            stage,
            team.index(world.rank),
            modules[role.stage],
            world.exchanger(members) if len(members) > 1 else None,
            [sorted(members).index(rank) for rank in members],
            options,
            plan.fused,
            loss if role.stage == len(plan.stages) - 1 else None,
            sharding.shadows.get(role.stage),
        )
    return runners


def compile_layers(plan: Plan, modules: Stages, backend: str | bool = True) -> None:
    """Have torch.compile compile layers when they are first called; `backend` is one of its own, or True for its usual.

    A layer at a time, so that all blocks of a transformer, which have one code, are compiled once. Stages with tiles or
    lanes stay as they are: their operators are found by rules that a compiler does not see.
    """
    for stage, layers in modules.items():
        if plan.stages[stage].tile_count * plan.stages[stage].lanes > 1:
            continue
        for _, layer in layers:
            if next(layer.parameters(), None) is None:
                continue  # nothing worth it
            if isinstance(backend, str):
                layer.compile(backend=backend)
            else:
                # Random numbers as eager layers draw them, so that dropout is the same on one device.
                layer.compile(options={"fallback_random": True})


def check_divisible(layout: Layout, named: Sequence[tuple[str, Layer]]) -> None:
    """Refuse tensor degrees that a plan or its layers cannot bear, before anything is started: layers are made without
    data, and those that cannot be are left to the run."""
    check_tensor(layout)
    for stage in layout.plan.stages:
        if stage.tensor == 1:
            continue
        from halocline.runtime.parallel.tensor_parallel import require_divisible

        for name, layer in named[slice(*stage.layers)]:
            try:
                with torch.device("meta"):
                    module = layer if isinstance(layer, nn.Module) else layer()
            except Exception:  # a layer of anyone's may raise anything; with data it will say so itself
                continue
            require_divisible(name, module, stage.tensor)


def check_tensor(layout: Layout) -> None:
    for number, stage in enumerate(layout.plan.stages):
        if stage.tensor == 1:
            continue
        if stage.tile_count > 1:
            raise ValueError(
                f"stages[{number}] has tiles = {list(stage.tiles)} and tensor = {stage.tensor}: a stage is cut into "
                f"tiles or shared by tensor ranks, not both; use tensor = 1 there"
            )
        groups = layout.tensor_groups(number)
        if any(list(group) != sorted(group) for group in groups) or len({r for g in groups for r in g}) != sum(
            map(len, groups)
        ):
            degrees = [s.tensor for s in layout.plan.stages]
            raise ValueError(
                f"stages[{number}] of the two pipes meet on ranks that tensor = {degrees} groups differently: give "
                f"every stage the same tensor degree, or use one pipe"
            )
