"""Tile exchanges over a transport: for those that torch's process groups know nothing of."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from halocline.runtime.transports.transport import Handle, Transport
from halocline.tiling.exchanger import Exchanger, Wait


class TransportExchanger(Exchanger):
    """The ranks of a process group, whose messages take `transport`."""

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
