"""A whole state back into an engine under any plan: each rank takes the tensors it holds, and whatever does not fit is
named with both sides. Knows engines and tensors; nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halocline.runtime.parallel.shard import is_sharded, shard
from halocline.runtime.processes.world import World, raise_alike
from halocline.runtime.state import State, kind_of, optimizer_of, state_of

_NAMED = 3
"""How many misfits an error names."""


@dataclass(frozen=True)
class Saved:
    """A whole state, of which each rank takes what it holds."""

    source: str
    """What errors call it."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of the model's tensors, under all their names."""
    tensor: Callable[[str], Tensor]
    kind: str = ""
    """The class of the optimizer; empty if unknown."""
    optimizer: Callable[[str], Mapping[str, Any]] = lambda name: {}
    """Parameter -> what the optimizer kept of it."""


def together(world: World, do: Callable[[], None]) -> None:
    """What may fail on one rank, so that all raise alike."""
    error = None
    try:
        do()
    except (ValueError, OSError) as raised:
        error = raised
    raise_alike(world, error)


def load(engine: State, state: Mapping[str, Any]) -> None:
    """See `State.load_state_dict`."""
    together(engine.world, lambda: _load(engine, state))


def _load(engine: State, state: Mapping[str, Any]) -> None:
    if "model" not in state:
        raise ValueError(
            f"rank {engine.world.rank} was given a state without 'model' (it has {some(list(state)) or 'nothing'}): "
            f"save what state_dict gave rank 0, and load it on every rank"
        )
    model, kept = state["model"], state.get("optimizer") or {}
    saved = Saved(
        "the state",
        {name: tuple(tensor.shape) for name, tensor in model.items()},
        model.__getitem__,
        kept.get("kind", ""),
        lambda name: kept["state"].get(name, {}),
    )
    load_model(engine, saved)
    if kept and engine.optimizer is not None:
        load_optimizers(engine, saved)
        _load_options(engine, engine.optimizer.param_groups, kept["param_groups"])
    engine.steps = state.get("steps", engine.steps)


def load_model(engine: State, saved: Saved) -> None:
    """Parameters and buffers."""
    ours = tensors_of(engine)
    _require_fit(engine, ours, saved)
    for name, tensor in ours.items():
        fill(tensor, saved.tensor(name))


def load_optimizers(engine: State, saved: Saved) -> None:
    """What the optimizer kept of each parameter."""
    ours = kind_of(engine)
    if saved.kind and ours and ours != saved.kind:
        raise ValueError(
            f"{saved.source} was written with optimizer {saved.kind} and this run uses {ours}: resume with "
            f"--optimizer {saved.kind.lower()}, or load the model alone"
        )
    for stage in engine.optimizers:
        optimizer, _ = optimizer_of(engine, stage)
        assert optimizer is not None
        names = {id(tensor): name for name, tensor in state_of(engine, stage)[0].items()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state.pop(parameter, None)
                for key, value in saved.optimizer(names[id(parameter)]).items():
                    if isinstance(value, Tensor):
                        on_device = key != "step" or bool(group.get("capturable") or group.get("fused"))
                        value = _placed(value, parameter, on_device)
                    optimizer.state[parameter][key] = value


def _load_options(engine: State, ours: Sequence[dict[str, Any]], saved: Sequence[Mapping[str, Any]]) -> None:
    """Learning rates and the like, by group of parameters."""
    names = {p: name for name, p in engine.named_parameters()}
    if len(ours) != len(saved) or any(
        names[p] not in theirs["params"] for group, theirs in zip(ours, saved) for p in group["params"]
    ):
        raise ValueError(
            f"the state's optimizer has {len(saved)} groups of parameters and this one {len(ours)}, or others in each: "
            f"make the optimizer with the groups that were saved"
        )
    for group, theirs in zip(ours, saved):
        group |= {key: value for key, value in theirs.items() if key != "params"}


def tensors_of(engine: State) -> dict[str, Tensor]:
    """All that this rank holds of the model, further names of one tensor left out."""
    return {name: tensor for stage in engine.modules for name, tensor in state_of(engine, stage)[0].items()}


def _require_fit(engine: State, ours: Mapping[str, Tensor], saved: Saved) -> None:
    """The names and shapes of the layers that this rank holds agree with those that were saved."""
    lacking = [name for name in ours if name not in saved.shapes]
    if lacking:
        raise ValueError(
            f"{saved.source} has no {some(lacking)}, which the model has (it has {some(sorted(saved.shapes))}): "
            f"resume with the model that was saved"
        )
    for name, tensor in ours.items():
        if tuple(tensor.shape) != saved.shapes[name]:
            raise misfit(name, tensor.shape, saved.shapes[name], saved.source)
    known = {name for name, _ in engine.named}
    held = {name for layers in engine.modules.values() for name, _ in layers}
    aliases = {alias for stage in engine.modules for alias in state_of(engine, stage)[1]}
    left = [
        name
        for name in saved.shapes
        if name not in ours and name not in aliases and ((layer := name.split(".")[0]) in held or layer not in known)
    ]
    if left:
        raise ValueError(
            f"{saved.source} has {some(left)}, which the model of {len(known)} layers has not: "
            f"resume with the model that was saved"
        )


def misfit(name: str, ours: Iterable[int], theirs: Iterable[int], source: str) -> ValueError:
    return ValueError(
        f"{name} has shape {list(ours)} in the model and {list(theirs)} in {source}: "
        f"give the model the options it was saved with"
    )


def some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def fill(target: Tensor, value: Tensor) -> None:
    """Give a tensor the values of another, or this rank's part of them."""
    with torch.no_grad():
        if is_sharded(target):
            from torch.distributed.tensor import distribute_tensor

            # Every rank has the whole and keeps its part: nothing is sent.
            mesh, placements = target.device_mesh, target.placements  # type: ignore[attr-defined]
            value = value.to(device=target.device, dtype=target.dtype)
            value = shard(distribute_tensor(value, mesh, placements, src_data_rank=None))
        shard(target).copy_(value)


def _placed(value: Tensor, parameter: Tensor, on_device: bool) -> Tensor:
    """State as the optimizer wants it: what is shaped like its parameter lies as the parameter lies, a count of steps
    on the CPU."""
    if value.shape != parameter.shape or not on_device:
        return value.to(parameter.device if on_device else "cpu", copy=True)
    made = torch.empty_like(parameter, dtype=parameter.dtype if value.is_floating_point() else value.dtype)
    fill(made, value)
    return made.detach()
