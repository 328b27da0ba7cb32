"""Updating parameters: an optimizer per stage, its state divided over the stage's sharers if asked, and gradients
clipped by the norm of the whole model. Knows parameters and who speaks for them; nothing of schedules.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from halocline.plan.layout import Layout
from halocline.runtime.layers import Stages, parameters_of
from halocline.runtime.parallel.shard import is_sharded, is_split, shard
from halocline.runtime.parallel.sharding import DATA, TENSOR
from halocline.runtime.parallel.tied import Ties
from halocline.runtime.processes.world import World

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def make_optimizers(
    make: MakeOptimizer, stages: Stages, ties: Ties, world: World, shared_out: Callable[[int], tuple[int, ...]]
) -> dict[int, torch.optim.Optimizer]:
    """One optimizer per stage, its state divided over the ranks that `shared_out(stage)` names, if any."""

    if not callable(make):
        raise ValueError(
            f"optimizer is a {type(make).__name__}, not a function that makes one of a stage's parameters: pass e.g. "
            f"lambda p: torch.optim.SGD(p, lr=0.1)"
        )
    made: dict[int, torch.optim.Optimizer] = {}
    for stage in stages:
        parameters = [p for p in parameters_of(stages[stage]) if p.requires_grad and p not in ties.aliases]
        if not parameters:
            continue
        made[stage] = _one_kind_per_group(_without_closure(make(parameters)))
        ranks = shared_out(stage)
        if len(ranks) > 1:
            made[stage] = _divided(made[stage], world.group(ranks))
    return made


def _without_closure(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer, if it is one that steps on the gradients of one forward and backward."""
    if not hasattr(optimizer, "param_groups"):
        raise ValueError(
            f"optimizer made a {type(optimizer).__name__}, not an optimizer: return torch.optim.SGD(p, ...)"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__} needs a closure, to run the model several times in one step, and here a step "
            f"runs it once: use another optimizer"
        )
    return optimizer


def _one_kind_per_group(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Groups that hold plain parameters and shards become two each: an optimizer treats a group's tensors in one call,
    which takes no mixture."""
    for group in list(optimizer.param_groups):
        shards = [p for p in group["params"] if is_sharded(p)]
        if shards and len(shards) < len(group["params"]):
            group["params"] = [p for p in group["params"] if not is_sharded(p)]
            optimizer.add_param_group({**group, "params": shards})
    return optimizer


def _divided(whole: torch.optim.Optimizer, group: Any) -> torch.optim.Optimizer:
    """PyTorch's ZeRO-1: the same optimizer as `whole`, which has not stepped yet, with the same groups of parameters;
    each rank of the process group keeps the state of a part of them, updates that part and sends it to the others."""
    with warnings.catch_warnings():  # torch warns of its own imports
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer

    class Divided(ZeroRedundancyOptimizer):
        """PyTorch's sends parameters as they are; the shard of one travels as the plain tensor it is."""

        def _broadcast_params_from_rank(self, rank: int) -> list[Any]:
            source = dist.get_global_rank(group, rank)
            updated = [p for part in self._partition_parameters()[rank] for p in part["params"]]  # type: ignore[attr-defined]
            return [dist.broadcast(shard(p), source, group, async_op=True) for p in updated]

    kind = type(whole)
    taken = inspect.signature(kind).parameters
    defaults = {name: value for name, value in whole.defaults.items() if name in taken}
    return Divided([dict(each) for each in whole.param_groups], kind, group, **defaults)


def clip_gradients(limit: float, world: World, layout: Layout, stages: Stages, ties: Ties) -> float:
    """Scale all gradients so that the norm over the whole model is at most `limit`; returns the norm. Each parameter
    counts once: of the ranks that share it, of tensor ranks that hold copies, and of tied copies, one speaks."""
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for stage in stages:
        tensor = layout.tensor_index(world.rank, stage)
        first = world.rank == layout.sharers(stage, tensor)[0]
        for p in parameters_of(stages[stage]):
            speaks = (first or is_split(p, DATA)) and (tensor == 0 or is_split(p, TENSOR)) and p not in ties.unspoken
            if p.grad is not None and speaks:
                total += shard(p.grad).double().square().sum()
    norm = float(world.sum(total)) ** 0.5
    if norm > limit:
        for gradient in (p.grad for layers in stages.values() for p in parameters_of(layers) if p.grad is not None):
            shard(gradient).mul_(limit / (norm + 1e-6))
    return norm
