"""Summing a stage's gradients over the ranks that share its parameters: one flat message per dtype, started early.

Knows parameters and the ranks that share them; nothing of schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from halocline.runtime.shard import give_gradient, is_sharded, settle, shard
from halocline.runtime.world import World
from halocline.tiling.exchanger import Exchanger


class Reduction:
    """One reduction under way. `start` returns at once; `finish` waits and writes the sums back.

    Of a parameter that tensor ranks share in parts, the sharers of one part sum that part.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world: World, ranks: tuple[int, ...], name: str) -> None:
        self.world, self.ranks, self.name = world, ranks, name
        self.buckets: list[tuple[list[nn.Parameter], Tensor, Any]] = []
        by_kind: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                settle(parameter)
                by_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        for (dtype, device), members in by_kind.items():
            # The first numbers say who has a gradient at all: a parameter that no rank used keeps None.
            flat = torch.zeros(len(members) + sum(_sizes(members)), dtype=dtype, device=device)
            flat[: len(members)] = torch.tensor([p.grad is not None for p in members], dtype=dtype, device=device)
            for p, place in zip(members, self._places(flat, members)):
                if p.grad is not None and p.grad.layout is not torch.strided:
                    raise ValueError(
                        f"a parameter of shape {tuple(p.shape)} has a {p.grad.layout} gradient, and ranks sum dense "
                        f"ones: make its embedding with sparse=False"
                    )
                if p.grad is not None:
                    place.copy_(shard(p.grad).reshape(-1))
            self.buckets.append((members, flat, world.start_sum(flat, ranks, name)))

    @property
    def handles(self) -> list[Any]:
        """What is under way: one all-reduce per bucket."""
        return [handle for _, _, handle in self.buckets]

    @staticmethod
    def _places(flat: Tensor, members: Sequence[nn.Parameter]) -> Sequence[Tensor]:
        return flat[len(members) :].split(_sizes(members))

    def finish(self) -> None:
        for members, flat, handle in self.buckets:
            self.world.wait(handle, f"rank {self.world.rank} waits for {self.name} over ranks {list(self.ranks)}")
            used = (flat[: len(members)].abs() > 0).tolist()  # complex numbers have no order
            for p, place, present in zip(members, self._places(flat, members), used):
                if present:
                    give_gradient(p, place)  # a view of the bucket: no copy back
                else:
                    p.grad = None
        self.buckets = []


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


def _sizes(parameters: Sequence[nn.Parameter]) -> list[int]:
    return [shard(p).numel() for p in parameters]
