"""Gloo and NCCL: messages straight through torch.distributed's default process group."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from halocline.runtime.transports.transport import Handle, Transport


class Gloo(Transport):
    """TCP between processes, for CPU tensors."""

    name = "gloo"

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._group: Any = dist.group.WORLD

    # Straight to the group: dist.isend's checks cost more than a small message.

    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        return self._group.send([message], peer, 0)

    def receive(self, message: Tensor, peer: int, label: object = "") -> Handle:
        return self._group.recv([message], peer, 0)


class Nccl(Transport):
    """GPU to GPU, one rank per GPU. Messages of different pairs travel on streams of their own."""

    name = "nccl"
    blocking = False

    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        return dist.isend(message, peer)  # type: ignore[return-value]

    def receive(self, message: Tensor, peer: int, label: object = "") -> Handle:
        return dist.irecv(message, peer)  # type: ignore[return-value]
