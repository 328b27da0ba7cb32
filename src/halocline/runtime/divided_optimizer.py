"""An optimizer whose state is divided over the ranks that share a stage (ZeRO-1): each keeps the state of some of the
parameters, updates those and sends them to the others. Knows parameters and a group of ranks; nothing of stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from halocline.runtime.shard import shard
from halocline.runtime.world import World


class DividedOptimizer(torch.optim.Optimizer):
    """All parameters are in its groups; `optim` has the same groups with this rank's parameters, and their state."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        world: World,
        ranks: tuple[int, ...],
    ) -> None:
        self.world, self.ranks = world, ranks
        self.parts = _parts(parameters, len(ranks))
        """For each of the ranks, the parameters that it updates."""
        mine = set(self.parts[ranks.index(world.rank)])
        self.optim = make(parameters)
        every = [dict(group) for group in self.optim.param_groups]
        for group in self.optim.param_groups:
            group["params"] = [p for p in group["params"] if p in mine]
        super().__init__(every, self.optim.defaults)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for ours, its in zip(self.param_groups, self.optim.param_groups):
            its.update({name: value for name, value in ours.items() if name != "params"})  # e.g. a new learning rate
        self.optim.step(closure)
        self._share()

    @torch.no_grad()
    def _share(self) -> None:
        """Every rank gets what the others have updated: one message from each, per dtype."""
        sent = []
        for rank, part in zip(self.ranks, self.parts):
            for dtype in dict.fromkeys(p.dtype for p in part):
                places = [shard(p) for p in part if p.dtype == dtype]
                flat = torch.cat([place.reshape(-1) for place in places])
                handle = dist.broadcast(flat, rank, self.world.group(self.ranks), async_op=True)
                sent.append((rank, places, flat, handle))
        for rank, places, flat, handle in sent:
            self.world.wait(handle, f"rank {self.world.rank} waits for the parameters that rank {rank} updates", rank)
            if rank != self.world.rank:
                for place, values in zip(places, flat.split([place.numel() for place in places])):
                    place.copy_(values.view(place.shape))


def _parts(parameters: Sequence[nn.Parameter], count: int) -> list[list[nn.Parameter]]:
    """The parameters in parts of about equal size. Tensor ranks divide alike: sizes are of whole parameters."""
    parts: list[list[nn.Parameter]] = [[] for _ in range(count)]
    loads = [0] * count
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        least = loads.index(min(loads))
        parts[least].append(parameter)
        loads[least] += parameter.numel()
    return parts
