"""Summing a stage's gradients over the ranks that share its parameters: a few flat messages, started early.

Knows parameters and the ranks that share them; nothing of schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from halocline.runtime.parallel.shard import give_gradient, is_sharded, settle, shard
from halocline.runtime.processes.world import World
from halocline.tiling.exchanger import Exchanger

BUCKET = 64 * 2**20
"""Bytes of a message, unless one parameter has more: so much memory a stage needs beside its gradients."""


@dataclass
class Bucket:
    """Parameters of one kind whose gradients travel together. The first numbers of `flat` say who has a gradient at
    all: a parameter that no rank used keeps None."""

    members: list[nn.Parameter]
    flat: Tensor
    complete: bool
    """Whether this rank has a gradient of each, and so need not look at the others' numbers."""
    handle: Any

    @property
    def places(self) -> Sequence[Tensor]:
        return self.flat[len(self.members) :].split([shard(p).numel() for p in self.members])


class Reduction:
    """One reduction under way, from when it is made; `finish` waits and gives parameters the sums.

    Of a parameter that tensor ranks share in parts, the sharers of one part sum that part.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world: World, ranks: tuple[int, ...], name: str) -> None:
        self.world, self.ranks, self.name = world, ranks, name
        trained = [p for p in parameters if p.requires_grad]
        for p in trained:
            settle(p)
        self.buckets = [self._started(members) for members in _together(trained)]
        self._noted: list[Any] = []
        self._ends: list[Any] = []

    def _started(self, members: list[nn.Parameter]) -> Bucket:
        dtype, device = members[0].dtype, members[0].device
        flat = torch.zeros(len(members) + sum(shard(p).numel() for p in members), dtype=dtype, device=device)
        present = [p.grad is not None for p in members]
        bucket = Bucket(members, flat, all(present), None)
        flat[: len(members)] = torch.tensor(present, dtype=dtype, device=device)
        for p, place in zip(members, bucket.places):
            if p.grad is None:
                continue
            if p.grad.layout is not torch.strided:
                raise ValueError(
                    f"a parameter of shape {tuple(p.shape)} has a {p.grad.layout} gradient, and ranks sum dense "
                    f"ones: make its embedding with sparse=False"
                )
            place.copy_(shard(p.grad).reshape(-1))
            p.grad = None  # its memory is the next bucket's
        bucket.handle = self.world.start_sum(flat, self.ranks, self.name)
        return bucket

    def watch(self, now: Callable[[], Any]) -> None:
        """Note when it ends, beside whatever this rank computes meanwhile."""
        self._ends = [] if self.buckets else [now()]
        works = [bucket.handle for bucket in self.buckets if isinstance(bucket.handle, dist.Work)]
        self._noted = [work.get_future().then(lambda _: self._ends.append(now())) for work in works]

    def ended(self) -> Any:
        """When it ended; None if that was not watched, or its transport does not tell."""
        for noted in self._noted:
            noted.wait()
        return self._ends[-1] if self._ends else None

    def finish(self) -> None:
        for bucket in self.buckets:
            story = f"rank {self.world.rank} waits for {self.name} over ranks {list(self.ranks)}"
            self.world.wait(bucket.handle, story)
            count = len(bucket.members)
            used = [True] * count if bucket.complete else (bucket.flat[:count].abs() > 0).tolist()
            for p, place, present in zip(bucket.members, bucket.places, used):
                if present:
                    give_gradient(p, place)  # a view of the bucket: no copy back
        self.buckets = []


def _together(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters of one dtype and device, so many that their gradients fill a bucket."""
    kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for p in parameters:
        kinds.setdefault((p.dtype, p.device), []).append(p)
    for members in kinds.values():
        filling: list[nn.Parameter] = []
        size = 0
        for p in members:
            own = shard(p).numel() * p.element_size()
            if filling and size + own > BUCKET:
                yield filling
                filling, size = [], 0
            filling.append(p)
            size += own
        yield filling


def parts_of_team(parameters: Sequence[nn.Parameter], exchangers: Sequence[Exchanger]) -> None:
    """Make of the gradients what the sum over all sharers wants: this rank's part.

    What a team found on tiles was put off, in parts. What it found on plain tensors is whole on each of its ranks; that
    of a parameter that tensor ranks share in parts is this lane's.
    """
    for p in parameters:
        if p.grad is not None and exchangers and not is_sharded(p):
            p.grad = p.grad / exchangers[0].size
        for exchanger in exchangers:
            part = None if exchanger.put_off is None else exchanger.put_off.pop(p, None)
            if part is not None:
                p.grad = part if p.grad is None else p.grad.add_(part)
