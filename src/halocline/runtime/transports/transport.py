"""A transport: how flat tensors travel between ranks. One small interface, one file per way of travelling.

Knows peers (global ranks) and tensors; nothing of stages or microbatches. There are no tags: the two ends of a pair
agree on the order of their messages, and `label` (what both ends call a message) is looked at only by the strict one.

| name   | tensors | way                                                                                     |
|--------|---------|-----------------------------------------------------------------------------------------|
| gloo   | CPU     | TCP between processes                                                                   |
| nccl   | GPU     | NCCL; one rank per GPU                                                                  |
| ipc    | both    | memory shared by the processes of one node (CUDA IPC); several ranks may use one GPU    |
| staged | GPU     | through pinned host memory over gloo: anywhere, slowly                                  |
| strict | CPU     | gloo, refusing whatever NCCL would refuse or hang on                                    |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from halocline.tiling.exchanger import Exchanger, exchanger_for

NAMES = ("gloo", "nccl", "ipc", "staged", "strict")


class Handle(Protocol):
    """Something under way. A `wait` that fails raises RuntimeError."""

    def wait(self, timeout: timedelta) -> Any: ...


class Transport(ABC):
    """Messages and sums between the ranks of the default process group."""

    name: ClassVar[str]
    blocking: ClassVar[bool] = True
    """Whether `wait` blocks this process until the end; if not, it only makes the GPU's stream wait."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    @abstractmethod
    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        """Start sending a contiguous tensor; it must stay unchanged until the handle is waited for."""

    @abstractmethod
    def receive(self, message: Tensor, peer: int, label: object = "") -> Handle:
        """Start filling a contiguous tensor; it may be read when the handle was waited for."""

    def exchange(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], label: object = ""
    ) -> list[tuple[int, Handle]]:
        """Start a round of messages that belong together: none of them waits for another."""
        started = [(peer, self.receive(tensor, peer, label)) for peer, tensor in receives.items()]
        return started + [(peer, self.send(tensor, peer, label)) for peer, tensor in sends.items()]

    def all_reduce(self, tensor: Tensor, group: Any = None, label: object = "") -> Handle:
        """Start replacing a tensor by its sum over a group (all ranks by default)."""
        return dist.all_reduce(tensor, group=group, async_op=True)  # type: ignore[return-value]

    def all_gather(self, parts: list[Tensor], tensor: Tensor, group: Any = None, label: object = "") -> Handle:
        """Start collecting the tensors of a group's ranks."""
        return dist.all_gather(parts, tensor, group=group, async_op=True)  # type: ignore[return-value]

    def exchanger(self, group: Any, deadline: float) -> Exchanger:
        """What moves the pixels of a tiled stage between the ranks of a group."""
        exchanger = exchanger_for(group)
        exchanger.deadline = deadline
        return exchanger

    def close(self) -> None:
        """Give back what the transport holds. Every rank calls this."""
        return None


def choose(device: torch.device, ranks_on_device: int, ranks_on_node: int, size: int) -> str:
    """The transport that suits: `ranks_on_device` is the most that share one GPU, `size` counts all ranks."""
    if device.type != "cuda":
        return "gloo"
    if ranks_on_device == 1 and dist.is_nccl_available():
        return "nccl"
    return "ipc" if ranks_on_node == size else "staged"


def make(name: str, rank: int, device: torch.device) -> Transport:
    """The transport of that name, for the initialised default process group."""
    from halocline.runtime.transports.gloo import Gloo, Nccl
    from halocline.runtime.transports.ipc import Ipc
    from halocline.runtime.transports.staged import Staged
    from halocline.runtime.transports.strict import Strict

    gpu = device.type == "cuda"
    if name not in NAMES:
        raise ValueError(f"transport {name!r} is unknown: use auto or one of {', '.join(NAMES)}")
    if name in ("nccl", "staged") and not gpu:
        raise ValueError(f"transport {name} moves GPU tensors and the device is {device}: use gloo, or --device cuda")
    if name in ("gloo", "strict") and gpu:
        raise ValueError(f"transport {name} moves CPU tensors and the device is {device}: use nccl, ipc or staged")
    if name == "ipc":
        return Ipc(rank, device)
    kinds: dict[str, Callable[[int], Transport]] = {"gloo": Gloo, "nccl": Nccl, "staged": Staged, "strict": Strict}
    return kinds[name](rank)
