"""A batch tensor as one rank reads it and the engine takes it. Knows boxes and samples; nothing of files or ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.boxes import Box, contains, is_empty, slices


def to_device(tensor: Tensor, device: torch.device | str, copy: bool = False) -> Tensor:
    """A tensor on a device. Nobody waits for a copy from pinned memory; one to the host is read at once."""
    return tensor.to(device, non_blocking=torch.device(device).type == "cuda", copy=copy)


@dataclass(frozen=True)
class ReadBoxes:
    """The boxes of a batch that one rank needs, batch dim included: a list for each tensor, empty if it needs none."""

    inputs: Sequence[Sequence[Box]]
    targets: Sequence[Sequence[Box]]


class Patchwork:
    """A batch tensor of which only some boxes are here: what a rank that reads only its own pixels hands to the engine.

    Stands for a tensor of `shape` made of `pieces`, each with the box that it covers, batch dim included.
    `patchwork[a:b]` is the same for some samples, `patchwork[a:b, c:d, ...]`, with a slice per dim, the pixels
    themselves, which must lie in one of the pieces.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        pieces: Sequence[tuple[Box, Tensor]],
        first: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self.shape, self.dtype = torch.Size(shape), dtype
        self.pieces = pieces
        self._first, self._device = first, device
        """`pieces` count samples from the start of the batch, `shape` from `first` on."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def to(self, device: torch.device | str) -> Patchwork:
        return Patchwork(self.shape, self.dtype, self.pieces, self._first, device)

    def pin_memory(self) -> Patchwork:
        """In memory that a GPU copies from without waiting."""
        pinned = [(box, tensor.pin_memory()) for box, tensor in self.pieces]
        return Patchwork(self.shape, self.dtype, pinned, self._first, self._device)

    def whole(self) -> Tensor:
        """All of it as a tensor."""
        return self._pixels(tuple((0, n) for n in self.shape))

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Any:
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.shape[0])
            shape = (max(0, stop - start), *self.shape[1:])
            return Patchwork(shape, self.dtype, self.pieces, self._first + start, self._device)
        return self._pixels(tuple(part.indices(size)[:2] for part, size in zip(index, self.shape)))

    def _pixels(self, wanted: Box) -> Tensor:
        if is_empty(wanted):  # a lane without samples reads nothing
            return torch.empty([end - begin for begin, end in wanted], dtype=self.dtype, device=self._device)
        box = shifted(wanted, self._first)
        for origin, tensor in self.pieces:
            if contains(origin, box):
                pixels = tensor[slices(box, origin)]
                return pixels if self._device is None else to_device(pixels, self._device)
        have = ", ".join(str(origin) for origin, _ in self.pieces) or "nothing"
        raise ValueError(f"this rank needs box {box} of the batch and was given {have}: read what engine.reads() names")


def shifted(box: Box, first: int) -> Box:
    """A microbatch's box in the whole batch."""
    return ((box[0][0] + first, box[0][1] + first), *box[1:])
