"""Updating parameters: an optimizer per stage, its state divided over the stage's sharers if asked; all of a rank's as
one, for torch's schedulers; losses scaled for float16; and gradients clipped by the norm of the whole model. Knows
parameters and who speaks for them; nothing of schedules.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from halocline.plan.layout import Layout
from halocline.runtime.layers import Stages, parameters_of
from halocline.runtime.parallel.shard import is_sharded, is_split, shard
from halocline.runtime.parallel.sharding import DATA, TENSOR
from halocline.runtime.parallel.tied import Ties
from halocline.runtime.processes.world import World, gathered

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class PlanOptimizer(torch.optim.Optimizer):
    """What updates the parameters, as the one optimizer that a scheduler takes: its groups are those of the one-device
    optimizer, the same on every rank and under every plan, with the parameters that this rank holds; groups with the
    same options are one. Their options hold for `stages`, stage -> the optimizer that keeps its state.
    """

    def __init__(
        self,
        make: MakeOptimizer,
        modules: Stages,
        ties: Ties,
        world: World,
        shared_out: Callable[[int], tuple[int, ...]],
    ) -> None:
        """Of the stages' `modules`; state is divided over the ranks that `shared_out(stage)` names, if any."""
        if not callable(make):
            raise ValueError(
                f"optimizer is a {type(make).__name__}, not a function that makes one of a stage's parameters: pass "
                f"e.g. lambda p: torch.optim.SGD(p, lr=0.1)"
            )
        self.stages: dict[int, torch.optim.Optimizer] = {}
        for stage in modules:
            parameters = [p for p in parameters_of(modules[stage]) if p.requires_grad and p not in ties.aliases]
            if not parameters:
                continue
            self.stages[stage] = _one_kind_per_group(_without_closure(make(parameters)))
            ranks = shared_out(stage)
            if len(ranks) > 1:
                self.stages[stage] = _divided(self.stages[stage], world.group(ranks))
        known: list[str] = []
        for told in gathered(world, [[_options(g) for g in each.param_groups] for each in self.stages.values()]):
            for options in told:
                known = _in_order(known, options)
        held = [group for each in self.stages.values() for group in each.param_groups]
        self._members = [[group for group in held if _options(group) == options] for options in known]
        groups: list[dict[str, Any]] = [
            {**(here[0] if here else json.loads(options)), "params": [p for group in here for p in group["params"]]}
            for options, here in zip(known, self._members)
        ]
        first = next(iter(self.stages.values()), None)
        defaults = first.defaults if first is not None else make([nn.Parameter(torch.empty(0))]).defaults
        super().__init__(groups or [{"params": []}], dict(defaults))
        self._due = False

    def update(self) -> None:
        """The step that belongs to a step of the engine."""
        self._due = True
        try:
            self.step()  # which a scheduler may have wrapped
        finally:
            self._due = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not self._due:
            raise ValueError("Engine.step has updated the parameters already: leave out optimizer.step()")
        for group, members in zip(self.param_groups, self._members or [[]], strict=True):
            for member in members:
                member |= {key: value for key, value in group.items() if key != "params"}
        for optimizer in self.stages.values():
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        raise ValueError("a rank's optimizer has only its own parameters' state: use Engine.state_dict()['optimizer']")

    def load_state_dict(self, state_dict: Any) -> None:
        raise ValueError("a rank's optimizer has only its own parameters' state: use Engine.load_state_dict")


def _options(group: Mapping[str, Any]) -> str:
    """What is said of a group; groups of several stages of which the same is said are one."""
    said = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    return json.dumps(said, sort_keys=True, default=lambda v: float(v) if isinstance(v, Tensor) else repr(v))


def _in_order(known: list[str], others: Sequence[str]) -> list[str]:
    """With what is said of the groups of one more stage, each in front of those that it stands in front of there."""
    place = len(known)
    for options in reversed(others):
        if options in known:
            place = known.index(options)
        else:
            known.insert(place, options)
    return known


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


class LossScale:
    """The factor that keeps float16 gradients from vanishing, of a `torch.amp.GradScaler`: each rank has one, and all
    find alike whether a gradient anywhere has overflowed."""

    def __init__(self, scaler: torch.amp.GradScaler, world: World) -> None:
        self.scaler, self.world = scaler, world
        # The scaler looks at this one gradient, which is infinite where one of any rank is.
        self._found = torch.zeros((), device=world.device, requires_grad=True)
        self._probe = torch.optim.SGD([self._found])

    def factor(self) -> Tensor:
        return self.scaler.scale(torch.ones((), device=self.world.device))

    def overflowed(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Take the factor out of the gradients; whether the step is to be left out. The factor is then updated."""
        inverse = self.factor().double().reciprocal().float()
        broken = torch.zeros((), device=self.world.device)
        for parameter in parameters:
            if parameter.grad is not None:
                gradient = shard(parameter.grad).mul_(inverse)
                broken += ~torch.isfinite(gradient).all()
        self._found.grad = torch.where(self.world.sum(broken, label="sum of overflows") > 0, torch.inf, 0.0)
        left_out = bool(self._found.grad)
        self.scaler.unscale_(self._probe)
        self.scaler.update()
        return left_out


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
