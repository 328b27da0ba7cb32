"""Staged: GPU tensors through pinned host memory over gloo. It works between any two processes, at the speed of TCP.

Gloo cannot send from GPU memory ("Bad address").
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from halocline.runtime.transports.transport import Handle, Transport


class Staged(Transport):
    name = "staged"

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._group: Any = dist.group.WORLD

    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        host = torch.empty(message.shape, dtype=message.dtype, pin_memory=True)
        host.copy_(message, non_blocking=True)
        torch.cuda.current_stream(message.device).synchronize()
        return _Sent(self._group.send([host], peer, 0), host)

    def receive(self, message: Tensor, peer: int, label: object = "") -> Handle:
        host = torch.empty(message.shape, dtype=message.dtype, pin_memory=True)
        return _Received(self._group.recv([host], peer, 0), host, message)


class _Sent:
    def __init__(self, work: Any, host: Tensor) -> None:
        self.work, self.host = work, host  # what is sent must live until it is sent

    def wait(self, timeout: timedelta) -> None:
        self.work.wait(timeout)


class _Received:
    def __init__(self, work: Any, host: Tensor, message: Tensor) -> None:
        self.work, self.host, self.message = work, host, message

    def wait(self, timeout: timedelta) -> None:
        self.work.wait(timeout)
        # Pinned memory is reused only when the copies that read it have ended: the allocator sees to it.
        self.message.copy_(self.host, non_blocking=True)
