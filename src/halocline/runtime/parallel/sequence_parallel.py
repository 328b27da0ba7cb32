"""Sequence parallelism: between the modules that tensor ranks share, each of them takes some of the tokens, so that
norms, residuals and what they keep for the backward are divided, too.

    x, some tokens -- norm --> all-gather --> column ... row --> reduce-scatter --> some tokens, added to x

A layer can do this if its class declares which of its norms see each token alone. Layers hand each other their tokens
as they are; what cannot take part, and the end of a stage, gets them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

TOKENS = 1
"""The dim of a (samples, tokens, features) tensor that is cut."""


def cut_tokens(name: str, layer: nn.Module, mesh: DeviceMesh) -> None:
    """Let a layer work on this rank's tokens: they are cut from what comes whole, and stay cut when they leave."""

    def enter(module: nn.Module, args: tuple[Any, ...]) -> Any:
        return _each(args, lambda t: _of_this_rank(name, t, mesh).to_local())

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return _each(output, lambda t: _spread(t, mesh, Shard(TOKENS)))

    layer.register_forward_pre_hook(enter)
    layer.register_forward_hook(leave)


def gather_tokens(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let a module inside such a layer see all tokens; it gets them as DTensors, whose gradients are then scattered."""

    def enter(module: nn.Module, args: tuple[Any, ...]) -> Any:
        met: dict[int, Tensor] = {}  # a sequence that attends to itself comes twice

        def whole(tensor: Tensor) -> Tensor:
            if id(tensor) not in met:
                met[id(tensor)] = _spread(tensor, mesh, Shard(TOKENS)).redistribute(placements=[Replicate()])
            return met[id(tensor)]

        return _each(args, whole)

    module.register_forward_pre_hook(enter)


def _of_this_rank(name: str, tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    tokens, degree = tensor.shape[TOKENS], mesh.size()
    if tokens % degree:
        raise ValueError(
            f"layer {name}: {tokens} tokens do not divide among tensor = {degree} ranks ({tokens} % {degree} = "
            f"{tokens % degree}): use a sequence of {tokens - tokens % degree or degree}, or no sequence parallelism"
        )
    return _spread(tensor, mesh, Replicate()).redistribute(placements=[Shard(TOKENS)])


def _spread(tensor: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [placement], run_check=False)


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with every (samples, tokens, features) tensor changed."""
    if isinstance(value, (tuple, list)):
        return tuple(_each(v, change) for v in value)
    if isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point():
        return change(value)
    return value
