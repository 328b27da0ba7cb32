"""How tensors travel between the ranks of a group: processes, threads of one process, one rank alone, or nowhere.

Knows flat tensors and peers; nothing of images, boxes or gradients.
"""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Wait = Callable[[], None]


class ExchangeTimeout(RuntimeError):
    """A peer did not answer before the deadline."""


@dataclass
class Traffic:
    """What this rank has sent so far; `reset` starts again from zero."""

    exchanges: int = 0
    """Calls of `start`: rounds of messages between peers."""
    messages: int = 0
    """Messages sent by this rank."""
    bytes: int = 0
    """Bytes sent by this rank in those messages."""
    reductions: int = 0
    """Collective operations (all_reduce and all_gather)."""

    def reset(self) -> None:
        self.exchanges = self.messages = self.bytes = self.reductions = 0


class Exchanger(ABC):
    """Moves tensors between the `size` ranks of one group; `rank` is this one. Compared by identity.

    All ranks call the same methods in the same order. Tensors passed in are contiguous.
    """

    travels = True
    """Whether messages take any time, during which something could be computed."""

    def __init__(self, rank: int, size: int, deadline: float = 600.0) -> None:
        self.rank = rank
        self.size = size
        self.deadline = deadline
        """Seconds to wait for a peer before `ExchangeTimeout` is raised."""
        self.names: tuple[int, ...] = tuple(range(size))
        """What the ranks are called outside the group, for errors."""
        self.counter = Traffic()
        self.watcher: Callable[..., None] | None = None
        """Told of every window that is worked out for this rank's tiles: (spec, reaches, output spec)."""
        self.trials: dict[Any, Any] = {}
        """What was measured of overlapping this rank's exchanges with computation."""
        self.everyone: Exchanger = self
        """The exchanger of all ranks that hold the same parameters; of a lane's that of all lanes."""
        self.put_off: dict[Tensor, Tensor] | None = None
        """Parameter -> this rank's part of its gradient, if somebody sums those parts later; see `for_tiles`."""

    def start(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        """Begin sending `sends` and filling `receives` (both by peer); the returned function waits for the end.

        The tensors must stay unchanged until then. A rank that neither sends nor receives may still call it.
        """
        if any(t.is_complex() for t in (*sends.values(), *receives.values())):
            sends, receives = ({peer: _numbers(t) for peer, t in messages.items()} for messages in (sends, receives))
        counter = self.counter
        counter.exchanges += 1
        counter.messages += len(sends)
        for tensor in sends.values():
            counter.bytes += tensor.nbytes
        if not sends and not receives:
            return _nothing
        return self._start(sends, receives)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its sum over the ranks, and return it."""
        self.counter.reductions += 1
        self._all_reduce(_numbers(tensor))
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks (equal shapes), stacked in rank order. Read only: they may share memory."""
        self.counter.reductions += 1
        parts = self._all_gather(_numbers(tensor))
        whole = parts if isinstance(parts, Tensor) else torch.stack(parts)
        return torch.view_as_complex(whole) if tensor.is_complex() else whole

    @abstractmethod
    def _start(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait: ...

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        """In the order of the ranks, so that all have the same sum."""
        first, *others = self._all_gather(tensor.clone())
        tensor.copy_(first)
        for part in others:
            tensor += part
        return tensor

    @abstractmethod
    def _all_gather(self, tensor: Tensor) -> Tensor | list[Tensor]:
        """The tensors of all ranks, as a list or already stacked."""

    def _timeout(self, peer: int) -> ExchangeTimeout:
        """`peer` is -1 for a collective operation, which waits for all."""
        whom = f"rank {self.names[peer]}" if peer >= 0 else f"ranks {list(self.names)}"
        return ExchangeTimeout(
            f"rank {self.names[self.rank]} waited up to {self.deadline:g} s for {whom} of a team of {self.size}, which "
            f"has failed, is slower than the deadline, or runs other operations than this one"
        )


def _numbers(tensor: Tensor) -> Tensor:
    """A tensor as backends know it: complex numbers as pairs, in the same memory."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _nothing() -> None:
    return None


class Alone(Exchanger):
    """A group of one rank."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _start(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        raise AssertionError("a group of one rank has no peer")

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor]


class NoCommunication(Exchanger):
    """Pretends to exchange: what would arrive is zero. Results are WRONG; it exists to measure the rest."""

    travels = False

    def _start(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        if receives:
            torch._foreach_zero_(list(receives.values()))  # one kernel, as a message would be
        return _nothing

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def _all_gather(self, tensor: Tensor) -> Tensor:
        return tensor.expand(self.size, *tensor.shape)


class ProcessExchanger(Exchanger):
    """The ranks of a torch.distributed process group.

    Gloo cannot send from GPU memory, so tensors on a GPU are staged through host memory on such a group.
    """

    def __init__(self, group: dist.ProcessGroup, deadline: float = 600.0) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group), deadline)
        self.group = group
        self.names = tuple(dist.get_global_rank(group, r) for r in range(self.size))
        self._gloo = "gloo" in str(dist.get_backend(group))

    def _start(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        if self._gloo:
            return self._start_gloo(sends, receives)
        ops = [dist.P2POp(dist.irecv, t, self.names[peer], self.group) for peer, t in receives.items()]
        ops += [dist.P2POp(dist.isend, t, self.names[peer], self.group) for peer, t in sends.items()]
        works = dist.batch_isend_irecv(ops)

        def wait() -> None:  # of the stream only; the group's own watchdog keeps the time
            for work in works:
                work.wait()

        return wait

    def _start_gloo(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        # Straight to the group, past dist.isend's checks, which cost more than a small message; and one work per
        # message, so that a failed wait can name its peer.
        landing: list[tuple[Tensor, Tensor]] = []
        works: list[tuple[int, Any]] = []
        kept = []  # what is sent must live until it is sent
        for peer, tensor in receives.items():
            target = tensor
            if tensor.is_cuda:
                target = torch.empty_like(tensor, device="cpu")
                landing.append((tensor, target))
            works.append((peer, self.group.recv([target], peer, 0)))
        for peer, tensor in sends.items():
            source = tensor.cpu() if tensor.is_cuda else tensor
            kept.append(source)
            works.append((peer, self.group.send([source], peer, 0)))

        def wait() -> None:
            patience = timedelta(seconds=self.deadline)
            for peer, work in works:
                try:
                    work.wait(patience)
                except RuntimeError as error:
                    raise self._timeout(peer) from error
            for tensor, target in landing:
                tensor.copy_(target)
            kept.clear()

        return wait

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        self._finish(dist.all_reduce(tensor, group=self.group, async_op=True))
        return tensor

    def _all_gather(self, tensor: Tensor) -> Tensor:
        whole = tensor.new_empty((self.size, *tensor.shape))
        self._finish(dist.all_gather(list(whole), tensor, group=self.group, async_op=True))
        return whole

    def _finish(self, work: Any) -> None:
        if not self._gloo:
            work.wait()  # of the stream only
            return
        try:
            work.wait(timedelta(seconds=self.deadline))
        except RuntimeError as error:
            raise self._timeout(-1) from error


class ThreadExchanger(Exchanger):
    """Ranks that are threads of this process, each calling the same methods on its own exchanger.

    `ThreadExchanger.connect(n)` makes the n exchangers. On CPU, autograd runs a backward in the thread that calls it,
    so a whole training step runs on n ranks without processes.
    """

    def __init__(self, rank: int, wires: dict[tuple[int, int], queue.SimpleQueue], size: int, deadline: float) -> None:
        super().__init__(rank, size, deadline)
        self._wires = wires

    @classmethod
    def connect(cls, size: int, deadline: float = 60.0) -> list[ThreadExchanger]:
        wires: dict[tuple[int, int], queue.SimpleQueue] = {
            (a, b): queue.SimpleQueue() for a in range(size) for b in range(size) if a != b
        }
        return [cls(rank, wires, size, deadline) for rank in range(size)]

    def abort(self) -> None:
        """Make every rank that waits for this one fail at once."""
        for peer in range(self.size):
            if peer != self.rank:
                self._wires[self.rank, peer].put(None)

    def _take(self, peer: int) -> Tensor:
        try:
            tensor = self._wires[peer, self.rank].get(timeout=self.deadline)
        except queue.Empty:
            raise self._timeout(peer) from None
        if tensor is None:
            raise ExchangeTimeout(f"rank {self.rank} waited for rank {peer}, which has failed")
        return tensor

    def _start(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        for peer, tensor in sends.items():
            self._wires[self.rank, peer].put(tensor.detach().clone())  # the sender may write to its own after the wait

        def wait() -> None:
            for peer, tensor in receives.items():
                arrived = self._take(peer)
                assert arrived.numel() == tensor.numel() and arrived.dtype == tensor.dtype, (arrived, tensor)
                tensor.copy_(arrived.view(tensor.shape))

        return wait

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        mine = tensor.detach().clone()
        for peer in range(self.size):
            if peer != self.rank:
                self._wires[self.rank, peer].put(mine)
        return [mine if peer == self.rank else self._take(peer) for peer in range(self.size)]


# One exchanger per process group, so that the geometry cached for its specs is found again at the next step.
_EXCHANGERS: dict[dist.ProcessGroup, ProcessExchanger] = {}
_ALONE = Alone()


def exchanger_for(group: dist.ProcessGroup | Exchanger | None) -> Exchanger:
    """The exchanger of a process group; of the default group for None, or of one rank where there is none."""
    if isinstance(group, Exchanger):
        return group
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return _ALONE
        group = dist.group.WORLD
    assert group is not None
    if group not in _EXCHANGERS:
        _EXCHANGERS[group] = ProcessExchanger(group)
    return _EXCHANGERS[group]


def traffic(group: dist.ProcessGroup | Exchanger | None = None) -> Traffic:
    """What this rank has sent over the group since the start or the last `reset()`."""
    return exchanger_for(group).counter
