"""The processes that take part: this one's rank and device, the groups it belongs to, and messages with a deadline.

Knows ranks and flat byte tensors; nothing of stages or microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from halocline.tiling.exchanger import Exchanger, exchanger_for


class PeerLost(RuntimeError):
    """A message did not come or could not be delivered; says who waited for what from whom."""


@dataclass
class World:
    """One process among `size`. Made by `World.join`; without torch.distributed it is alone."""

    rank: int
    size: int
    device: torch.device
    deadline: float = 600.0
    """Seconds that any wait may take."""
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

    @classmethod
    def join(cls, device: torch.device | str | None = None, deadline: float = 600.0) -> World:
        """The world of the initialised default process group, or a world of one."""
        if dist.is_available() and dist.is_initialized():
            rank, size = dist.get_rank(), dist.get_world_size()
        else:
            rank, size = 0, 1
        return cls(rank, size, torch.device(device or "cpu"), deadline)

    # -- groups --------------------------------------------------------------------------------------------------

    def make_groups(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Make the process groups of several lists of ranks. Every rank calls this with the same lists."""
        for ranks in map(_key, groups):
            if len(ranks) > 1 and ranks not in self._groups:
                if len(ranks) == self.size and ranks == tuple(range(self.size)):
                    self._groups[ranks] = dist.group.WORLD
                else:
                    self._groups[ranks] = dist.new_group(list(ranks), timeout=timedelta(seconds=self.deadline))

    def group(self, ranks: tuple[int, ...]) -> Any:
        """The group of these ranks; None for one rank alone."""
        return self._groups[_key(ranks)] if len(ranks) > 1 else None

    def exchanger(self, ranks: tuple[int, ...]) -> Exchanger:
        """What moves the pixels of a tiled stage between its ranks."""
        exchanger = exchanger_for(self._groups[_key(ranks)])
        exchanger.deadline = self.deadline
        return exchanger

    # -- messages ------------------------------------------------------------------------------------------------

    def send(self, message: Tensor, peer: int) -> Any:
        """Start sending; the message must stay unchanged until the returned handle is waited for."""
        return dist.isend(message, peer)

    def receive(self, size: int, peer: int) -> tuple[Tensor, Any]:
        """Start receiving `size` bytes."""
        message = torch.empty(size, dtype=torch.uint8, device=self.device)
        return message, dist.irecv(message, peer)

    def wait(self, handle: Any, story: str) -> None:
        """Wait for a message; `story` says who waits for what, for the error."""
        try:
            handle.wait(timedelta(seconds=self.deadline))
        except RuntimeError as error:
            late = "imed out" in str(error) or "imeout" in str(error)
            reason = (
                f"nothing came for {self.deadline:g} s" if late else "that rank has failed or closed its connection"
            )
            raise PeerLost(f"{story}: {reason}") from error

    def sum(self, tensor: Tensor, ranks: tuple[int, ...] | None = None) -> Tensor:
        """Replace a tensor by its sum over some ranks (all by default)."""
        if self.size > 1 and (ranks is None or len(ranks) > 1):
            dist.all_reduce(tensor, group=None if ranks is None else self._groups[_key(ranks)])
        return tensor


def _key(ranks: Sequence[int]) -> tuple[int, ...]:
    """Groups are known by their sorted ranks: torch sorts them, too."""
    return tuple(sorted(ranks))
