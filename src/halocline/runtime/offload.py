"""Activations kept in host memory between forward and backward: slower, for what does not fit otherwise."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

SMALL = 1 << 16
"""Bytes below which moving a tensor gains nothing."""

Packed = tuple[torch.device, Tensor] | Tensor


def offloaded(device: torch.device) -> AbstractContextManager[Any]:
    """A forward whose saved tensors wait in (pinned) host memory. Parameters stay: they live on the device anyway."""

    def pack(tensor: Tensor) -> Packed:
        if isinstance(tensor, nn.Parameter) or tensor.numel() * tensor.element_size() < SMALL or tensor.is_sparse:
            return tensor
        host = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=device.type == "cuda")
        if torch.ops.aten.is_non_overlapping_and_dense(tensor):  # in whatever order: channels_last keeps its own
            host = host.as_strided(tensor.size(), tensor.stride())
        host.copy_(tensor, non_blocking=True)
        return tensor.device, host

    def unpack(packed: Packed) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        home, host = packed
        return host.to(home, non_blocking=True, copy=home.type == "cpu")

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
