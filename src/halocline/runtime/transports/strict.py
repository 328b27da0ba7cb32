"""Strict: gloo for tests, refusing whatever NCCL would refuse or hang on, with an error that names both sides.

NCCL has no tags: the messages of a pair, in both directions, form one sequence on which both ends must agree, and so do
the collectives that two ranks take part in. Each message is preceded by an envelope that says which of the pair's
messages it is, what it is called and how large it is; the receiver compares it with what it expects. Before each
collective the ranks exchange such envelopes pairwise. (Tags exist here only to keep envelopes apart; the interface has
none.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from halocline.runtime.transports.transport import Handle, Later, Transport

_ENVELOPE = 256
_TAGS = 1 << 24
"""Tags of one strict transport: what another one left unread in the same process group is not mistaken for its own."""
_COLLECTIVE = _TAGS // 2
"""The second half of them belongs to collectives."""


class Refused(ValueError):
    """What NCCL would refuse or hang on."""


class Strict(Transport):
    name = "strict"
    carries_tiles = True
    _made = 0
    _left: ClassVar[list[Any]] = []
    """Messages of a refused collective: nobody takes them, and gloo closes a connection whose message is dropped."""

    def __init__(self, rank: int, device: torch.device) -> None:
        super().__init__(rank, device)
        self._tags = Strict._made % 64 * _TAGS
        Strict._made += 1
        self._messages: dict[int, int] = {}
        """Peer -> messages so far between the two, both directions."""
        self._collectives: dict[int, int] = {}
        """Peer -> collectives so far that both took part in."""

    def send(self, message: Tensor, peer: int, label: object = "") -> Handle:
        return self._send(message, peer, self._next(peer), label)

    def receive(self, message: Tensor, peer: int, label: object = "") -> Handle:
        return self._receive(message, peer, self._next(peer), label)

    def exchange(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], label: object = ""
    ) -> list[tuple[int, Handle]]:
        # One group call of NCCL: what a pair says to each other in it counts as one message in each direction.
        numbers = {peer: self._next(peer) for peer in sorted({*sends, *receives})}
        started = [(peer, self._receive(t, peer, numbers[peer], label)) for peer, t in receives.items()]
        return started + [(peer, self._send(t, peer, numbers[peer], label)) for peer, t in sends.items()]

    def _next(self, peer: int) -> int:
        if peer == self.rank:
            raise Refused(f"rank {self.rank} sends to itself")
        self._messages[peer] = self._messages.get(peer, 0) + 1
        return self._messages[peer]

    def _send(self, message: Tensor, peer: int, number: int, label: object) -> Handle:
        self._check_tensor(message, label)
        envelope = _write(_describe(label, message))
        works = [
            self._group.send([envelope], peer, self._tags + 2 * number),
            self._group.send([message], peer, self._tags + 2 * number + 1),
        ]

        def wait(timeout: timedelta) -> None:
            for work in works:
                work.wait(timeout)

        return Later(wait, envelope, message)

    def _receive(self, message: Tensor, peer: int, number: int, label: object) -> Handle:
        self._check_tensor(message, label)
        envelope = torch.empty(_ENVELOPE, dtype=torch.uint8)
        work = self._group.recv([envelope], peer, self._tags + 2 * number)

        def check(timeout: timedelta) -> None:
            work.wait(timeout)
            theirs, ours = _read(envelope), _describe(label, message)
            if theirs != ours:
                raise Refused(
                    f"message {number} between rank {peer} and rank {self.rank}: rank {peer} sends [{theirs}] and rank "
                    f"{self.rank} expects [{ours}]"
                )
            self._group.recv([message], peer, self._tags + 2 * number + 1).wait(timeout)

        return Later(check)

    def _check_tensor(self, tensor: Tensor, label: object) -> None:
        if not tensor.is_contiguous():
            raise Refused(
                f"rank {self.rank} hands over a tensor for [{label}] that is not contiguous: shape "
                f"{tuple(tensor.shape)}, strides {tensor.stride()}"
            )

    def all_reduce(self, tensor: Tensor, group: Any = None, label: object = "") -> Handle:
        start = super().all_reduce
        return self._collective("all_reduce", tensor, group, label, lambda: start(tensor, group))

    def all_gather(self, parts: list[Tensor], tensor: Tensor, group: Any = None, label: object = "") -> Handle:
        start = super().all_gather
        return self._collective("all_gather", tensor, group, label, lambda: start(parts, tensor, group))

    def _collective(self, name: str, tensor: Tensor, group: Any, label: object, start: Callable[[], Any]) -> Handle:
        self._check_tensor(tensor, label)
        ranks = dist.get_process_group_ranks(group)
        ours = f"{name} over ranks {ranks}: {_describe(label, tensor)}"
        envelope = _write(ours)
        posted = []
        for peer in ranks:
            if peer == self.rank:
                continue
            number = self._collectives[peer] = self._collectives.get(peer, 0) + 1
            theirs = torch.empty(_ENVELOPE, dtype=torch.uint8)
            received = self._group.recv([theirs], peer, self._tags + _COLLECTIVE + number)
            sent = self._group.send([envelope], peer, self._tags + _COLLECTIVE + number)
            posted.append((peer, number, theirs, received, sent))

        def check(timeout: timedelta) -> None:
            for peer, number, theirs, received, _ in posted:
                received.wait(timeout)
                if _read(theirs) != _read(envelope):
                    Strict._left.append(posted)
                    raise Refused(
                        f"collective {number} that rank {self.rank} and rank {peer} take part in: rank {self.rank} "
                        f"starts [{ours}] and rank {peer} starts [{_read(theirs)}]"
                    )
            for *_, sent in posted:
                sent.wait(timeout)
            start().wait(timeout)

        return Later(check)


def _describe(label: object, tensor: Tensor) -> str:
    return f"{label}, {tensor.numel()} x {str(tensor.dtype).removeprefix('torch.')}"


def _write(text: str) -> Tensor:
    data = text.encode()[:_ENVELOPE].ljust(_ENVELOPE, b"\0")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _read(envelope: Tensor) -> str:
    return bytes(envelope.tolist()).rstrip(b"\0").decode(errors="replace")
