"""A transport: how flat tensors travel between ranks. One small interface, the ways that torch has, and the choice.

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

from halocline.tiling.exchanger import Exchanger, Wait, exchanger_for

NAMES = ("gloo", "nccl", "ipc", "staged", "strict")


class Handle(Protocol):
    """Something under way. A `wait` that fails raises RuntimeError."""

    def wait(self, timeout: timedelta) -> Any: ...


class Later:
    """A handle: what is under way ends with `wait`, until which `kept` must live."""

    def __init__(self, wait: Callable[[timedelta], Any], *kept: Any) -> None:
        self._wait, self._kept = wait, kept

    def wait(self, timeout: timedelta) -> None:
        self._wait(timeout)


class Transport(ABC):
    """Messages and sums between the ranks of the default process group."""

    name: ClassVar[str]
    blocking: ClassVar[bool] = True
    """Whether `wait` blocks this process until the end; if not, it only makes the GPU's stream wait."""

    carries_tiles: ClassVar[bool] = False
    """Whether the pixels of tiles take it, too; if not, torch's process groups move them."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self.rank, self.device = rank, device
        self._group: Any = dist.group.WORLD
        self._exchangers: dict[Any, TransportExchanger] = {}

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
        if self.carries_tiles:
            if group not in self._exchangers:
                self._exchangers[group] = TransportExchanger(self, group, deadline)
            return self._exchangers[group]
        exchanger = exchanger_for(group)
        exchanger.deadline = deadline
        return exchanger

    def close(self) -> None:
        """Give back what the transport holds. Every rank calls this."""
        return None


class TransportExchanger(Exchanger):
    """Moves the pixels of tiles between the ranks of a process group by a transport that it knows nothing of."""

    def __init__(self, transport: Transport, group: Any, deadline: float) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group), deadline)
        self.transport, self.group = transport, group
        self.names = tuple(dist.get_process_group_ranks(group))

    def _start(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        started = self.transport.exchange(
            {self.names[peer]: tensor for peer, tensor in sends.items()},
            {self.names[peer]: tensor for peer, tensor in receives.items()},
            "tile exchange",
        )

        def wait() -> None:
            for peer, handle in started:
                self._wait(handle, self.names.index(peer))
            started.clear()

        return wait

    def _wait(self, handle: Handle, peer: int) -> None:
        try:
            handle.wait(timedelta(seconds=self.deadline))
        except RuntimeError as error:
            raise self._timeout(peer) from error

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        self._wait(self.transport.all_reduce(tensor, self.group, "sum over a team"), -1)
        return tensor

    def _all_gather(self, tensor: Tensor) -> Tensor:
        whole = tensor.new_empty((self.size, *tensor.shape))
        self._wait(self.transport.all_gather(list(whole), tensor, self.group, "gather over a team"), -1)
        return whole


class Gloo(Transport):
    name = "gloo"

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


class Staged(Transport):
    """GPU tensors through pinned host memory over gloo, which cannot send from GPU memory ("Bad address"). It works
    between any two processes, at the speed of TCP."""

    name = "staged"

    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        host = torch.empty(message.shape, dtype=message.dtype, pin_memory=True)
        host.copy_(message, non_blocking=True)
        torch.cuda.current_stream(message.device).synchronize()
        return Later(self._group.send([host], peer, 0).wait, host)

    def receive(self, message: Tensor, peer: int, label: object = "") -> Handle:
        host = torch.empty(message.shape, dtype=message.dtype, pin_memory=True)
        work = self._group.recv([host], peer, 0)

        def wait(timeout: timedelta) -> None:
            work.wait(timeout)
            # Pinned memory is reused only when the copies that read it have ended: the allocator sees to it.
            message.copy_(host, non_blocking=True)

        return Later(wait)


def choose(device: torch.device, ranks_on_device: int, ranks_on_node: int, size: int) -> str:
    """The transport that suits: `ranks_on_device` is the most that share one GPU, `size` counts all ranks."""
    if device.type != "cuda":
        return "gloo"
    if ranks_on_device == 1 and dist.is_nccl_available():
        return "nccl"
    return "ipc" if ranks_on_node == size else "staged"


def make(name: str, rank: int, device: torch.device) -> Transport:
    """The transport of that name, for the initialised default process group."""
    from halocline.runtime.transports.ipc import Ipc
    from halocline.runtime.transports.strict import Strict

    gpu = device.type == "cuda"
    if name not in NAMES:
        raise ValueError(f"transport {name!r} is unknown: use auto or one of {', '.join(NAMES)}")
    if name in ("nccl", "staged") and not gpu:
        raise ValueError(f"transport {name} moves GPU tensors and the device is {device}: use gloo, or --device cuda")
    if name in ("gloo", "strict") and gpu:
        raise ValueError(f"transport {name} moves CPU tensors and the device is {device}: use nccl, ipc or staged")
    return next(kind for kind in (Gloo, Nccl, Ipc, Staged, Strict) if kind.name == name)(rank, device)
