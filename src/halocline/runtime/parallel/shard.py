"""A shard: the part of a parameter, or of its gradient, that lies on this rank. A plain tensor is its own shard.

PyTorch's DTensor carries the parts. It is known here by what it can do, so that a run without any never loads it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor: spread over ranks, in parts or in equal copies."""
    return hasattr(tensor, "full_tensor")


def shard(tensor: Tensor) -> Tensor:
    """What of a tensor lies here, as a plain tensor that shares its memory."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor.detach()  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, as a plain tensor. All ranks that hold parts of it call this alike."""
    if not is_sharded(tensor):
        return tensor
    # Torch warns that gathering over two axes of a mesh, data and tensor, takes two messages: here it must.
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return tensor.detach().full_tensor()  # type: ignore[attr-defined]
    finally:
        logger.setLevel(level)


def split_dim(tensor: Tensor) -> int | None:
    """The dim along which a tensor is split over its tensor ranks; None where each of them holds all of it."""
    if not is_sharded(tensor):
        return None
    return next((p.dim for p in tensor.placements if p.is_shard()), None)  # type: ignore[attr-defined]


def is_split(tensor: Tensor, axis: str) -> bool:
    """Whether ranks along an axis of a tensor's mesh (`data` or `tensor`) hold different parts of it."""
    if not is_sharded(tensor):
        return False
    placed = zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements)  # type: ignore[attr-defined]
    return any(name == axis and not p.is_replicate() for name, p in placed)


def span(tensor: Tensor) -> tuple[int, int]:
    """First and last + 1 index of this rank's shard along the dim that is split (even parts, the last ones shorter)."""
    dim = split_dim(tensor)
    assert dim is not None
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    size = tensor.shape[dim]
    part = -(-size // mesh.size())
    first = min(mesh.get_local_rank() * part, size)
    return first, min(first + part, size)


def settle(parameter: nn.Parameter) -> None:
    """Lay a gradient out as its parameter is: one whose parts still have to be summed over tensor ranks becomes whole.
    All tensor ranks call this alike."""
    gradient = parameter.grad
    if gradient is None or not is_sharded(parameter):
        return
    wanted, mesh = parameter.placements, parameter.device_mesh  # type: ignore[attr-defined]
    if gradient.placements != wanted:  # type: ignore[attr-defined]
        with torch.no_grad():
            parameter.grad = gradient.redistribute(mesh, wanted)  # type: ignore[attr-defined]


def give_gradient(parameter: nn.Parameter, local: Tensor) -> None:
    """Set a parameter's gradient to what `local` holds of it here."""
    if not is_sharded(parameter):
        parameter.grad = local.view(parameter.shape)
        return
    from torch.distributed.tensor import DTensor

    parameter.grad = DTensor.from_local(
        local.view(shard(parameter).shape),
        parameter.device_mesh,  # type: ignore[attr-defined]
        parameter.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def divided_buffers(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A layer's buffers by name; those of which each tensor rank keeps a part know the whole."""
    for key, buffer in layer.named_buffers():
        owner, _, name = key.rpartition(".")
        mesh = getattr(layer.get_submodule(owner), "_divided", {}).get(name)
        if mesh is not None:
            from torch.distributed.tensor import DTensor, Shard

            buffer = DTensor.from_local(buffer, mesh, [Shard(0)], run_check=False)
        yield key, buffer
