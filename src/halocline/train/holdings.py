"""What of the one-device model a rank holds: parameters, buffers and optimizer state by their one-device names, and
which of the ranks that hold a tensor writes it. Knows engines and tensors; nothing of files.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halocline.runtime.engine import Engine
from halocline.runtime.parallel.shard import divided_buffers, whole
from halocline.train.manifest import OPTIMIZER


@dataclass(frozen=True)
class Holding:
    """A tensor that this rank has, whole or in part."""

    name: str
    tensor: Tensor
    writer: int
    """The rank that writes it to a checkpoint."""

    def whole(self) -> Tensor:
        """All of it. Where ranks hold parts, all of them must ask at the same point."""
        return whole(self.tensor)


@dataclass
class Holdings:
    """All that a rank has."""

    tensors: list[Holding]
    aliases: dict[str, str]
    """Further names of a tensor that is listed once."""
    numbers: dict[str, dict[str, Any]]
    """Parameter -> what the optimizer keeps of it that is no tensor."""


def state_of(engine: Engine, stage: int) -> tuple[dict[str, Tensor], dict[str, str]]:
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


def optimizer_of(engine: Engine, stage: int) -> tuple[torch.optim.Optimizer | None, bool]:
    """The optimizer that keeps a stage's state on this rank, and whether it keeps only a share of it."""
    optimizer = engine.optimizers.get(stage)
    local = getattr(optimizer, "optim", optimizer)
    return local, local is not optimizer


def holdings(engine: Engine) -> Holdings:
    """Everything of this rank's stages. Ranks of one stage list the same names in the same order."""
    found = Holdings([], {}, {})
    for stage in sorted(engine.modules):
        tensors, aliases = state_of(engine, stage)
        found.aliases |= aliases
        # Of a parameter that is tied across stages, one stage's copy is written.
        spoken = {name: tensor for name, tensor in tensors.items() if tensor not in engine.ties.unspoken}
        writers = _writers(spoken, _holders(engine, stage), stage)
        found.tensors += [Holding(name, tensor, writers[name]) for name, tensor in spoken.items()]
        for name, key, value, writer in _optimizer_state(engine, stage, spoken, writers):
            if isinstance(value, Tensor):
                found.tensors.append(Holding(f"{OPTIMIZER}{name}.{key}", value, writer))
            elif writer == engine.world.rank:
                found.numbers.setdefault(name, {})[key] = value
    return found


def _optimizer_state(
    engine: Engine, stage: int, tensors: Mapping[str, Tensor], writers: Mapping[str, int]
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


def _holders(engine: Engine, stage: int) -> tuple[int, ...]:
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
