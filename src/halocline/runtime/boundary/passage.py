"""A passage: what one message between two ranks carries over a stage boundary, worked out once for each size of
microbatch, and how tensors become such a message and back. Knows boxes and bytes; nothing of when messages travel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from halocline.plan.layout import ACTIVATION, GRADIENT, Layout
from halocline.runtime.boundary.crossing import Crossing, Piece, pack, packed_size, pieces, unpack, wanted
from halocline.runtime.stage import StageRunner
from halocline.tiling.boxes import Box, shape


@dataclass(frozen=True)
class Passage:
    """One message, as this rank's side of it sees it."""

    parts: tuple[Piece, ...]
    """What it carries, in order; nothing if no message is needed."""
    size: int
    """Bytes."""
    crossings: tuple[Crossing, ...]
    """All tensors of the boundary, as this rank's team holds them."""
    origins: tuple[Box, ...]
    """The box of each that this rank holds."""
    whole: bool
    """It carries all that this rank holds (or, going up, has a gradient of), so it can be used as it came."""

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        if self.whole and len(self.parts) == 1:
            index = self.parts[0].index
            return self.crossings[index].as_bytes(tensors[index])
        return pack(self.parts, self.crossings, tensors, self.origins)

    def unpack(self, message: Tensor, tensors: Sequence[Tensor], add: bool = False) -> None:
        unpack(message, self.parts, self.crossings, tensors, self.origins, add)

    def views(self, message: Tensor) -> list[Tensor | None]:
        """The tensors of a message that is whole, without a copy; None for those it does not carry."""
        found: list[Tensor | None] = [None] * len(self.crossings)
        start = 0
        for part in self.parts:
            crossing = self.crossings[part.index]
            stop = start + prod(shape(part.box)) * crossing.torch_dtype.itemsize
            flat = message if len(self.parts) == 1 else message[start:stop]
            found[part.index] = crossing.from_bytes(flat, part.box)
            start = stop
        return found


class Passages:
    """The passages of one rank, each found when it is first needed."""

    def __init__(
        self,
        layout: Layout,
        local: int,
        runners: Mapping[tuple[int, int], StageRunner],
        entering: Callable[[int, int, int], tuple[Crossing, ...]],
    ) -> None:
        self.layout, self.local, self.runners = layout, local, runners
        self.entering = entering
        """(pipe, stage, samples) -> what enters that stage, as the stage before it holds it."""
        self._passages: dict[tuple[int, int, int, str, int], Passage] = {}
        self._received: dict[tuple[int, int, int], tuple[Crossing, ...]] = {}

    def received(self, pipe: int, stage: int, samples: int) -> tuple[Crossing, ...]:
        """What enters a stage, as its own team wants it."""
        key = pipe, stage, samples
        if key not in self._received:
            plan = self.layout.plan.stages[stage]
            self._received[key] = tuple(wanted(c, plan) for c in self.entering(pipe, stage, samples))
        return self._received[key]

    def between(self, pipe: int, stage: int, samples: int, what: str, peer: int) -> Passage:
        """The message with `peer` at the boundary below `stage`, whoever of the two sends it."""
        key = pipe, stage, samples, what, peer
        if key not in self._passages:
            self._passages[key] = self._make(*key)
        return self._passages[key]

    def _make(self, pipe: int, stage: int, samples: int, what: str, peer: int) -> Passage:
        # Above the boundary a tensor is held as it was made, below it as it is wanted.
        made, held = self.entering(pipe, stage + 1, samples), self.received(pipe, stage + 1, samples)
        above = self.local in self.layout.team(pipe, stage)
        upper, lower = (self.local, peer) if above else (peer, self.local)
        stages = self.layout.plan.stages
        team, degree = self.layout.team(pipe, stage), stages[stage].tensor
        # A tensor that is whole on every rank above comes from the first (tile, lane) that is linked to the one below.
        # The tensor ranks of that tile and lane all have it, and each gets its gradient.
        sources = [link.source for link in self.layout.links(pipe, stage, ACTIVATION) if link.target == lower]
        parts = pieces(
            made,
            stages[stage],
            held,
            stages[stage + 1],
            team.index(upper),
            self.layout.team(pipe, stage + 1).index(lower),
            team.index(upper) // degree == min(team.index(source) // degree for source in sources),
        )
        if what == GRADIENT:
            parts = tuple(part for part in parts if made[part.index].differentiable)
        crossings = made if above else held
        runner = self.runners[pipe, stage if above else stage + 1]
        origins = tuple(runner.origin(c) for c in crossings)
        all_of_it = [
            Piece(index, origin)
            for index, (crossing, origin) in enumerate(zip(crossings, origins))
            if what == ACTIVATION or crossing.differentiable
        ]
        whole = list(parts) == all_of_it and _aligned(parts, crossings)
        return Passage(parts, packed_size(parts, crossings), crossings, origins, whole)


def _aligned(parts: Sequence[Piece], crossings: Sequence[Crossing]) -> bool:
    """Whether each part of a message begins where its dtype may."""
    start = 0
    for part in parts:
        size = crossings[part.index].torch_dtype.itemsize
        if start % size:
            return False
        start += prod(shape(part.box)) * size
    return True
