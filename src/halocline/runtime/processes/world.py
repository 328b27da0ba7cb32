"""The processes that take part: this one's rank and device, the groups it belongs to, messages with a deadline, and
what ranks tell each other in words.

Knows ranks, flat tensors and JSON; nothing of stages or microbatches.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from halocline.runtime.processes.logbook import Logbook
from halocline.runtime.processes.lost import PeerLost, is_lost
from halocline.runtime.processes.watch import Watch
from halocline.runtime.transports.transport import Handle, Transport, make
from halocline.tiling.exchanger import Exchanger, exchanger_for


@contextmanager
def quietly() -> Iterator[None]:
    """Making groups: until torch 2.11, gloo tells stdout of each, and whoever reads `--json` reads stdout."""
    if torch.__version__ >= "2.11":
        yield
        return
    sys.stdout.flush()
    stdout, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)


@dataclass
class World:
    """One process among `size`. Made by `launch.join` or, in a process group that exists, by `World.join`."""

    rank: int
    size: int
    device: torch.device
    deadline: float = 600.0
    """Seconds that any wait may take."""
    transport: Transport | None = None
    """How messages travel; None for one process alone."""
    launcher: str = ""
    """What started the processes: torchrun, mpirun, srun; empty if unknown."""
    logbook: Logbook = field(default_factory=lambda: Logbook(None, 0, 0))
    """What this rank is doing, for whoever asks after it is gone."""
    watch: Watch | None = None
    """Looks after the other ranks, where `launch.join` asked for it."""
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)
    _apart: Any = None

    @classmethod
    def join(
        cls, device: torch.device | str | None = None, deadline: float = 600.0, transport: str | None = None
    ) -> World:
        """The world of the initialised default process group, or a world of one."""
        where = torch.device(device or "cpu")
        if not (dist.is_available() and dist.is_initialized()):
            return cls(0, 1, where, deadline)
        rank, size = dist.get_rank(), dist.get_world_size()
        if transport is None:
            transport = "gloo" if where.type == "cpu" else "nccl" if "nccl" in dist.get_backend() else "staged"
        return cls(rank, size, where, deadline, make(transport, rank, where))

    def __str__(self) -> str:
        how = f", transport {self.transport.name}" if self.transport is not None else ""
        by = f" started by {self.launcher}" if self.launcher else ""
        count = "1 process" if self.size == 1 else f"{self.size} processes"
        return f"{count}{by} on {self.device.type}{how}, deadline {self.deadline:g} s"

    def make_groups(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Make the process groups of several lists of ranks. Every rank calls this with the same lists."""
        with quietly():
            for ranks in map(_key, groups):
                if len(ranks) > 1 and ranks not in self._groups:
                    if len(ranks) == self.size and ranks == tuple(range(self.size)):
                        self._groups[ranks] = dist.group.WORLD
                    else:
                        self._groups[ranks] = dist.new_group(list(ranks), timeout=timedelta(seconds=self.deadline))
            if self.size > 1 and self._apart is None:
                self._apart = dist.new_group(timeout=timedelta(seconds=self.deadline))

    def group(self, ranks: tuple[int, ...]) -> Any:
        """The group of these ranks; None for one rank alone."""
        return self._groups[_key(ranks)] if len(ranks) > 1 else None

    def exchanger(self, ranks: tuple[int, ...]) -> Exchanger:
        if self.transport is None:
            return exchanger_for(None)
        return self.transport.exchanger(self._groups[_key(ranks)], self.deadline)

    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        """Start sending; the message must stay unchanged until the returned handle is waited for.

        `label` is what both ends call it: a strict transport compares them.
        """
        assert self.transport is not None
        with self._or_lost(f"rank {self.rank} waits to send to rank {peer}"):
            return self.transport.send(message, peer, label)

    def receive(self, size: int, peer: int, label: object = "") -> tuple[Tensor, Handle]:
        """Start receiving `size` bytes."""
        assert self.transport is not None
        message = torch.empty(size, dtype=torch.uint8, device=self.device)
        with self._or_lost(f"rank {self.rank} waits for a message from rank {peer}"):
            return message, self.transport.receive(message, peer, label)

    @contextmanager
    def _or_lost(self, story: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not is_lost(error):
                raise
            raise self.lost(story, error) from error

    def wait(self, handle: Handle, story: str, peer: int | None = None) -> None:
        """Wait for something under way; `story` says who waits for what from which `peer`, for the error."""
        assert self.transport is not None
        if not self.transport.blocking:
            handle.wait()  # type: ignore[call-arg]
            if self.watch is not None:
                self.watch.expect(handle, story)
            return
        self.logbook.waits_for(peer)
        try:
            handle.wait(timedelta(seconds=self.deadline))
            self.logbook.waits_for(None)
        except RuntimeError as error:
            late = "imed out" in str(error) or "imeout" in str(error)
            reason = f"nothing came for {self.deadline:g} s" if late else "its peer has failed or closed the connection"
            if late and peer is not None:
                reason += self.logbook.waited_for(peer)
            if not late and self.watch is not None and (cause := self.watch.cause()):
                reason = cause
            raise PeerLost(f"{story}: {reason}") from error

    def lost(self, story: str, error: Exception) -> PeerLost:
        """The error of one who waits, where another error says that a peer is gone: its cause, if that is known."""
        cause = self.watch.cause() if self.watch is not None else ""
        return PeerLost(f"{story}: {cause or error}")

    def start_sum(self, tensor: Tensor, ranks: tuple[int, ...] | None = None, label: object = "") -> Handle:
        """Start replacing a tensor by its sum over some ranks (all by default)."""
        assert self.transport is not None
        return self.transport.all_reduce(tensor, None if ranks is None else self._groups[_key(ranks)], label)

    def start_sum_apart(self, tensor: Tensor, label: object = "") -> Handle | None:
        """Start a sum over all ranks in a group of its own: ranks may start it at any moment between other sums."""
        if self._apart is None:
            return None
        assert self.transport is not None
        return self.transport.all_reduce(tensor, self._apart, label)

    def sum(self, tensor: Tensor, ranks: tuple[int, ...] | None = None, label: str = "sum") -> Tensor:
        """Replace a tensor by its sum over some ranks (all by default)."""
        if self.size > 1 and (ranks is None or len(ranks) > 1):
            who = f"ranks {list(ranks)}" if ranks is not None else "all ranks"
            self.wait(self.start_sum(tensor, ranks, label), f"rank {self.rank} waits for the {label} over {who}")
        return tensor

    def close(self) -> None:
        """Leave: the watch ends, shared memory is given back, the process group is left. Every rank calls this."""
        if self.watch is not None:
            self.watch.leave()
        if self.transport is not None:
            self.transport.close()
            dist.destroy_process_group()
        self.logbook.remove()
        self.watch, self.transport = None, None


def _key(ranks: Sequence[int]) -> tuple[int, ...]:
    """Groups are known by their sorted ranks: torch sorts them, too."""
    return tuple(sorted(ranks))


# -- words ---------------------------------------------------------------------------------------------------------


def gathered(world: World, value: Any) -> list[Any]:
    """What every rank passed, by rank. Every rank calls this; it returns when all have."""
    text = json.dumps(value).encode()
    if world.size == 1:
        return [json.loads(text)]
    sizes = torch.zeros(world.size, dtype=torch.int64, device=world.device)
    sizes[world.rank] = len(text)
    ends = world.sum(sizes, label="sizes of words").cumsum(0).tolist()
    # A sum gathers: everybody else's bytes are zero at this rank's place.
    words = torch.zeros(ends[-1], dtype=torch.uint8, device=world.device)
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    words[ends[world.rank] - len(text) : ends[world.rank]] = mine.to(world.device)
    whole = world.sum(words, label="words of all ranks").cpu().numpy().tobytes()
    return [json.loads(whole[start:end]) for start, end in zip([0, *ends], ends)]


def raise_alike(world: World, error: Exception | None) -> None:
    """If a rank has an error, every rank raises it. Every rank calls this."""
    for rank, story in enumerate(gathered(world, None if error is None else str(error))):
        if story is not None:
            if error is not None and rank == world.rank:
                raise error
            raise ValueError(story)
