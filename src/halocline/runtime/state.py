"""What an engine holds of the one-device model, by its one-device names: parameters, buffers and the optimizer's state.

Which of the ranks that hold a tensor speaks for it, and the whole on rank 0. Knows tensors and ranks; nothing of files.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.runtime.layers import Layer, Stages, parameters_of
from halocline.runtime.parallel.shard import divided_buffers, whole
from halocline.runtime.parallel.tied import Ties
from halocline.runtime.processes.world import World, gathered, raise_alike
from halocline.runtime.updating import PlanOptimizer


class State:
    """The tensors of an engine."""

    world: World
    plan: Plan
    layout: Layout
    named: list[tuple[str, Layer]]
    modules: Stages
    ties: Ties
    optimizers: dict[int, torch.optim.Optimizer]
    optimizer: PlanOptimizer | None
    steps: int

    def parameters(self) -> Iterable[nn.Parameter]:
        """The parameters this rank holds, copies of tied ones included."""
        return (p for stage in self.modules for p in parameters_of(self.modules[stage]))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """With the names they have in the one-device model, tied ones once."""
        return self._once((name, layer.named_parameters()) for held in self.modules.values() for name, layer in held)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """With the names they have in the one-device model, those of modules that layers share once."""
        return self._once((name, divided_buffers(layer)) for held in self.modules.values() for name, layer in held)

    def _once(self, layers: Iterable[tuple[str, Iterable[tuple[str, Any]]]]) -> Iterator[tuple[str, Any]]:
        seen = set()
        for layer_name, tensors in layers:
            for key, tensor in tensors:
                name = self.ties.name(f"{layer_name}.{key}")
                if name not in seen:
                    seen.add(name)
                    yield name, tensor

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from, whole, in the names of one device. Every rank calls this; rank 0 gets it, in
        host memory, and the others an empty dict.

        `model` is what `load_state_dict` of the one-device `nn.Sequential` takes, `optimizer` what
        `torch.distributed.checkpoint.state_dict.set_optimizer_state_dict` takes, `steps` counts the steps taken.
        """
        return collected(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave, under whatever plan. Every rank calls this with the whole state. Without
        `optimizer` or `steps` those stay as they are, so `{"model": net.state_dict()}` begins with a model's weights.
        """
        from halocline.runtime.loading import load

        load(self, state)


# -- what this rank holds ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holding:
    """A tensor that this rank has, whole or in part."""

    name: str
    """On one device."""
    tensor: Tensor
    writer: int
    """The rank that speaks for it."""
    key: str = ""
    """What it is to the optimizer, which keeps it for the parameter `name`; empty for a tensor of the model."""

    def whole(self) -> Tensor:
        """All of it. Where ranks hold parts, all of them must ask at the same point."""
        return whole(self.tensor)


@dataclass
class Holdings:
    """All that a rank has."""

    tensors: list[Holding] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    """Further names of a tensor that is listed once."""
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Parameter -> what the optimizer keeps of it that is no tensor."""


def state_of(engine: State, stage: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The parameters and buffers of a stage by their one-device names, each once, and the further names of some."""
    found: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[int, str] = {}
    for layer_name, layer in engine.modules[stage]:
        divided = dict(divided_buffers(layer))
        for key, value in layer.state_dict(keep_vars=True).items():
            own = f"{layer_name}.{key}"
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"layer {layer_name} keeps {key} as a {type(value).__name__} in its state, and a checkpoint holds "
                    f"tensors only: make it a buffer, or a tensor"
                )
            name = seen.setdefault(id(value), engine.ties.name(own))
            if name != own:
                aliases[own] = name
            found.setdefault(name, divided.get(key, value))
    return found, aliases


def optimizer_of(engine: State, stage: int) -> tuple[torch.optim.Optimizer | None, bool]:
    """The optimizer that keeps a stage's state on this rank, and whether it keeps only a share of it."""
    optimizer = engine.optimizers.get(stage)
    local = getattr(optimizer, "optim", optimizer)
    return local, local is not optimizer


def kind_of(engine: State) -> str:
    """The class of the optimizer; empty without one here."""
    return next((type(optimizer_of(engine, stage)[0]).__name__ for stage in engine.optimizers), "")


def holdings(engine: State) -> Holdings:
    """Everything of this rank's stages. Ranks of one stage list the same names in the same order."""
    found = Holdings()
    for stage in sorted(engine.modules):
        tensors, aliases = state_of(engine, stage)
        found.aliases |= aliases
        # Of a parameter that is tied across stages, one stage's copy is written.
        spoken = {name: tensor for name, tensor in tensors.items() if tensor not in engine.ties.unspoken}
        writers = _writers(spoken, _holders(engine, stage), stage)
        found.tensors += [Holding(name, tensor, writers[name]) for name, tensor in spoken.items()]
        for name, key, value, writer in _optimizer_state(engine, stage, spoken, writers):
            if isinstance(value, Tensor):
                found.tensors.append(Holding(name, value, writer, key))
            elif writer == engine.world.rank:
                found.numbers.setdefault(name, {})[key] = value
    return found


def _optimizer_state(
    engine: State, stage: int, tensors: Mapping[str, Tensor], writers: Mapping[str, int]
) -> Iterator[tuple[str, str, Any, int]]:
    """(parameter, key, value, writer) of what the optimizer keeps."""
    optimizer, shared_out = optimizer_of(engine, stage)
    if optimizer is None:
        return
    # State that was shared out lies on one rank of those with the same shard of the weights: that one writes it.
    first_shard = engine.world.rank in engine.layout.sharers(stage)
    for name, tensor in tensors.items():
        for key, value in sorted(optimizer.state.get(tensor, {}).items()):
            if value is None:
                continue
            if not isinstance(value, (Tensor, int, float, str, bool)):
                raise ValueError(
                    f"{type(optimizer).__name__} keeps {key} of {name} as a {type(value).__name__}: a checkpoint holds "
                    f"tensors, numbers and words only"
                )
            writer = writers[name] if not shared_out else engine.world.rank if first_shard else -1
            yield name, key, value, writer


def _holders(engine: State, stage: int) -> tuple[int, ...]:
    """The ranks that hold a stage or a part of it."""
    shards = engine.plan.stages[stage].tensor
    return tuple(sorted({rank for shard in range(shards) for rank in engine.layout.sharers(stage, shard)}))


def _writers(tensors: Mapping[str, Tensor], ranks: Sequence[int], stage: int) -> dict[str, int]:
    """Who writes what: each tensor goes to the rank that has least to write so far."""
    turn = stage % len(ranks)  # stages begin with different ranks
    loads = [(0, place, rank) for place, rank in enumerate((*ranks[turn:], *ranks[:turn]))]
    writers = {}
    for name in sorted(tensors, key=lambda n: (-_bytes(tensors[n]), n)):
        load, place, rank = heapq.heappop(loads)
        writers[name] = rank
        heapq.heappush(loads, (load + _bytes(tensors[name]), place, rank))
    return writers


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


# -- the whole on rank 0 -------------------------------------------------------------------------------------------


def collected(engine: State) -> dict[str, Any]:
    """See `State.state_dict`."""
    world = engine.world
    held, error = Holdings(), None
    try:
        held = holdings(engine)
    except ValueError as raised:
        error = raised
    raise_alike(world, error)
    here = {(h.name, h.key): h for h in held.tensors}
    mine = [
        (h.name, h.key, h.tensor.shape, str(h.tensor.dtype).removeprefix("torch."), h.writer)
        for h in held.tensors
        if h.writer == world.rank
    ]
    groups = [] if engine.optimizer is None else [set(group["params"]) for group in engine.optimizer.param_groups]
    members = [[name for name, p in engine.named_parameters() if p in group] for group in groups]
    parts = gathered(world, [mine, held.aliases, held.numbers, members, kind_of(engine)])
    model: dict[str, Tensor] = {}
    kept: dict[str, dict[str, Any]] = {}
    # One order on all ranks: whoever must meet to make a tensor whole, or to hand it over, meets at the same point.
    for name, key, shape, dtype, writer in sorted(heading for part in parts for heading in part[0]):
        holding = here.get((name, key))
        value = holding.whole().detach() if holding is not None else None
        brought = _brought(world, value, shape, getattr(torch, dtype), writer, f"state of {name} {key}")
        if brought is not None and key:
            kept.setdefault(name, {})[key] = brought
        elif brought is not None:
            model[name] = brought
    if world.rank:
        return {}
    for _, aliases, numbers, _, _ in parts:
        model |= {alias: model[name] for alias, name in aliases.items()}
        for name, values in numbers.items():
            kept.setdefault(name, {}).update(values)
    state: dict[str, Any] = {"model": model, "steps": engine.steps}
    if engine.optimizer is not None:
        names = [[*dict.fromkeys(chain(*ranks))] for ranks in zip(*(part[3] for part in parts))]
        options = [{**group, "params": named} for group, named in zip(engine.optimizer.param_groups, names)]
        kind = next(filter(None, (part[4] for part in parts)), "")
        state["optimizer"] = {"state": kept, "param_groups": options, "kind": kind}
    return state


def _brought(
    world: World, value: Tensor | None, shape: Sequence[int], dtype: torch.dtype, writer: int, label: str
) -> Tensor | None:
    """A tensor that `writer` has, in rank 0's host memory; None on the others."""
    if writer == world.rank and value is not None:
        if world.rank == 0:
            return value.cpu().clone()
        if value.numel():
            message = value.to(world.device).contiguous().view(-1).view(torch.uint8)
            world.wait(world.send(message, 0, label), f"rank {world.rank} waits to send the {label} to rank 0", 0)
    if world.rank:
        return None
    found = torch.empty(shape, dtype=dtype)
    if found.numel():
        message, handle = world.receive(_bytes(found), writer, label)
        world.wait(handle, f"rank 0 waits for the {label} from rank {writer}", writer)
        found.copy_(message.view(dtype).view(shape))
    return found
