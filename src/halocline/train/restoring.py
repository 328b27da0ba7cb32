"""From a checkpoint into an engine under any plan: each rank reads the tensors it holds, and whatever does not fit is
named with both sides. Knows checkpoints and engines; nothing of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from halocline.runtime.engine import Engine
from halocline.runtime.processes.world import raise_alike
from halocline.train.checkpoint import Checkpoint
from halocline.train.holdings import optimizer_of, state_of
from halocline.train.manifest import OPTIMIZER, RANDOM, Manifest

_NAMED = 3
"""How many misfits an error names."""


def restore(engine: Engine, checkpoint: Checkpoint) -> None:
    """Parameters, buffers, optimizer state, random state and the number of steps. Every rank calls this."""
    _together(engine, lambda: _restore_model(engine, checkpoint))
    _together(engine, lambda: _restore_optimizers(engine, checkpoint))
    if RANDOM in checkpoint.manifest.tensors:
        torch.random.set_rng_state(checkpoint.tensor(RANDOM))
    engine.steps = checkpoint.manifest.step


def restore_weights(
    engine: Engine, read: Callable[[Container[str]], Iterable[tuple[str, Tensor]]], source: str
) -> None:
    """Parameters alone, from whatever reads those of some one-device names. Every rank calls this."""
    _together(engine, lambda: _take_weights(engine, read, source))


def _together(engine: Engine, do: Any) -> None:
    error = None
    try:
        do()
    except (ValueError, OSError) as raised:
        error = raised
    raise_alike(engine.world, error)


# -- the model -----------------------------------------------------------------------------------------------------


def _restore_model(engine: Engine, checkpoint: Checkpoint) -> None:
    manifest = checkpoint.manifest
    ours = _ours(engine)
    saved = {name: place.shape for name, place in manifest.model.items()}
    saved |= {alias: saved[name] for alias, name in manifest.aliases.items()}
    _require_fit(engine, ours, saved, str(checkpoint.path))
    for name, tensor in ours.items():
        fill(tensor, checkpoint.tensor(name))


def _take_weights(engine: Engine, read: Callable[[Container[str]], Iterable[tuple[str, Tensor]]], source: str) -> None:
    ours = _ours(engine)
    missing = dict(ours)
    for name, value in read(ours):
        if name in ours:
            if ours[name].shape != value.shape:
                raise ValueError(_misfit(name, ours[name].shape, value.shape, source))
            fill(ours[name], value)
            missing.pop(name, None)
    parameters = [n for n in missing if isinstance(missing[n], torch.nn.Parameter)]
    if parameters:
        raise ValueError(f"{source} has no {_some(parameters)}, which the model has: is it the weights of this model?")


def _ours(engine: Engine) -> dict[str, Tensor]:
    """All names of what this rank holds, further names of one tensor left out."""
    return {name: tensor for stage in engine.modules for name, tensor in state_of(engine, stage)[0].items()}


def _require_fit(engine: Engine, ours: Mapping[str, Tensor], saved: Mapping[str, tuple[int, ...]], source: str) -> None:
    """The names and shapes of the layers that this rank holds agree with those that were saved."""
    lacking = [name for name in ours if name not in saved]
    if lacking:
        raise ValueError(
            f"{source} has no {_some(lacking)}, which the model has (it has {_some(sorted(saved))}): "
            f"resume with the model that was saved"
        )
    for name, tensor in ours.items():
        if tuple(tensor.shape) != saved[name]:
            raise ValueError(_misfit(name, tensor.shape, saved[name], source))
    known = {name for name, _ in engine.named}
    held = {name for layers in engine.modules.values() for name, _ in layers}
    aliases = {alias for stage in engine.modules for alias in state_of(engine, stage)[1]}
    left = [
        name
        for name in saved
        if name not in ours and name not in aliases and ((layer := name.split(".")[0]) in held or layer not in known)
    ]
    if left:
        raise ValueError(
            f"{source} has {_some(left)}, which the model of {len(known)} layers has not: "
            f"resume with the model that was saved"
        )


def _misfit(name: str, ours: Iterable[int], theirs: Iterable[int], source: str) -> str:
    return (
        f"{name} has shape {list(ours)} in the model and {list(theirs)} in {source}: "
        f"give the model the options it was saved with"
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def fill(target: Tensor, value: Tensor) -> None:
    """Give a tensor the values of another, or this rank's part of them."""
    with torch.no_grad():
        if isinstance(target, DTensor):
            # Every rank has read the whole and keeps its part: nothing is sent.
            whole = value.to(device=target.device, dtype=target.dtype)
            part = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
            target.to_local().copy_(part.to_local())
        else:
            target.copy_(value)


# -- the optimizer -------------------------------------------------------------------------------------------------


def _restore_optimizers(engine: Engine, checkpoint: Checkpoint) -> None:
    manifest = checkpoint.manifest
    keys = _keys(manifest)
    for stage in engine.optimizers:
        optimizer, _ = optimizer_of(engine, stage)
        assert optimizer is not None
        ours = type(optimizer).__name__
        if manifest.optimizer and ours != manifest.optimizer:
            raise ValueError(
                f"{checkpoint.path} was written with optimizer {manifest.optimizer} and this run uses {ours}: "
                f"resume with --optimizer {manifest.optimizer.lower()}"
            )
        names = {id(tensor): name for name, tensor in state_of(engine, stage)[0].items()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                name = manifest.aliases.get(name, name)
                state = dict(manifest.numbers.get(name, {}))
                for key in keys.get(name, ()):
                    value = checkpoint.tensor(f"{OPTIMIZER}{name}.{key}")
                    on_device = key != "step" or bool(group.get("capturable") or group.get("fused"))
                    state[key] = _placed(value, parameter, on_device)
                if state:
                    optimizer.state[parameter] = state


def _keys(manifest: Manifest) -> dict[str, list[str]]:
    """Parameter -> what tensors the optimizer keeps of it."""
    found: dict[str, list[str]] = {}
    for name in manifest.tensors:
        if name.startswith(OPTIMIZER):
            parameter, _, key = name.removeprefix(OPTIMIZER).rpartition(".")
            found.setdefault(parameter, []).append(key)
    return found


def _placed(value: Tensor, parameter: Tensor, on_device: bool) -> Tensor:
    """State as the optimizer wants it: what is shaped like its parameter lies as the parameter lies, a count of steps
    on the CPU."""
    if value.shape != parameter.shape or not on_device:
        return value.to(parameter.device if on_device else "cpu", copy=True)
    made = torch.empty_like(parameter, dtype=parameter.dtype if value.is_floating_point() else value.dtype)
    fill(made, value)
    return made.detach()
