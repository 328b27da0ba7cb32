"""Messages: what one rank sends another over a boundary, worked out once for each size of microbatch, and how tensors
become such a message and back. Knows boxes and bytes; nothing of when messages travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor

from halocline.plan.layout import ACTIVATION, GRADIENT
from halocline.runtime.boundary.crossing import Crossing, box_of
from halocline.runtime.boundary.shapes import Shapes
from halocline.tiling.boxes import Box, intersect, is_empty, shape, slices


@dataclass(frozen=True)
class Part:
    """A box of one tensor in a message."""

    index: int
    """Which tensor of the boundary."""
    crossing: Crossing
    box: Box
    window: tuple[slice, ...] | None
    """Where the box lies in what this rank holds of the tensor; None if it is all of that."""
    start: int
    stop: int
    """Its bytes in the message."""

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        tensor = tensors[self.index]
        return tensor if self.window is None else tensor[self.window]

    def read(self, message: Tensor) -> Tensor:
        """The values in a message: a view of it, unless other numbers before them let no view begin there."""
        flat = message[self.start : self.stop]
        return self.crossing.from_bytes(
            flat.clone() if self.start % self.crossing.torch_dtype.itemsize else flat, self.box
        )


@dataclass(frozen=True)
class StageMessage:
    """What one rank sends another, as this rank's side of it sees it."""

    parts: tuple[Part, ...]
    """In order; none if no message is needed."""
    tensors: int
    """How many the boundary has."""
    whole: bool
    """It carries all that this rank holds (or, going up, has a gradient of), so it can be used as it came."""

    @classmethod
    def of(
        cls,
        boxes: Sequence[tuple[int, Box]],
        crossings: Sequence[Crossing],
        origins: Sequence[Box],
        carried: Sequence[int],
    ) -> StageMessage:
        """The message of `boxes` (each with its tensor's index). `origins` are the boxes of the tensors that this rank
        holds; `carried` are the indices of the tensors that travel in this direction."""
        parts, start = [], 0
        for index, box in boxes:
            stop = start + prod(shape(box)) * crossings[index].torch_dtype.itemsize
            window = None if box == origins[index] else slices(box, origins[index])
            parts.append(Part(index, crossings[index], box, window, start, stop))
            start = stop
        return cls(tuple(parts), len(crossings), list(boxes) == [(index, origins[index]) for index in carried])

    @property
    def size(self) -> int:
        """Bytes."""
        return self.parts[-1].stop if self.parts else 0

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        flat = [part.crossing.as_bytes(part.of(tensors)) for part in self.parts]
        return flat[0] if len(flat) == 1 else torch.cat(flat)

    def unpack(self, message: Tensor, tensors: Sequence[Tensor], add: bool = False) -> None:
        """Write (or add) the parts to where they lie in `tensors`."""
        for part in self.parts:
            place, values = part.of(tensors), part.read(message)
            if add:
                place.add_(values)
            else:
                place.copy_(values)

    def views(self, message: Tensor) -> list[Tensor | None]:
        """The tensors of a message that is whole; None for those it does not carry."""
        found = {part.index: part.read(message) for part in self.parts}
        return [found.get(index) for index in range(self.tensors)]


Messages = Callable[[int, int, int, str, int], StageMessage]
"""(pipe, stage, samples, what, peer) -> the message with `peer` at the boundary below `stage`, whoever of the two sends
it."""


def messages_by(shapes: Shapes) -> Messages:
    """What finds this rank's messages, each worked out when it is first needed."""
    layout, runners, stages = shapes.layout, shapes.runners, shapes.layout.plan.stages
    local = shapes.world.rank % layout.ranks_per_replica

    @cache
    def between(pipe: int, stage: int, samples: int, what: str, peer: int) -> StageMessage:
        # Above the boundary a tensor is held as it was made, below it as it is wanted.
        made, held = shapes.entering[stage + 1, samples], shapes.received(stage + 1, samples)
        team, degree = layout.team(pipe, stage), stages[stage].tensor
        above = local in team
        upper, lower = (local, peer) if above else (peer, local)
        sender, receiver = team.index(upper), layout.team(pipe, stage + 1).index(lower)
        # A tensor that is whole on every rank above comes from the first (tile, lane) that is linked to the one below.
        # The tensor ranks of that tile and lane all have it, and each gets its gradient.
        sources = [link.source for link in layout.links(pipe, stage, ACTIVATION) if link.target == lower]
        first = sender // degree == min(team.index(source) // degree for source in sources)
        carried = [index for index, crossing in enumerate(made) if what != GRADIENT or crossing.differentiable]
        boxes = []
        for index in carried:
            box = box_of(held[index], stages[stage + 1], receiver)
            if made[index].cuts:
                box = intersect(box_of(made[index], stages[stage], sender), box)
            elif not first:
                continue
            if not is_empty(box):
                boxes.append((index, box))
        crossings, runner = (made, runners[pipe, stage]) if above else (held, runners[pipe, stage + 1])
        return StageMessage.of(boxes, crossings, [runner.origin(crossing) for crossing in crossings], carried)

    return between
