"""Strips: the parts of a tensor that travel, one per peer, and how a GPU packs, places and adds all of them at once.

There, the strips of one exchange are the rows of one matrix, strip by strip: a row holds the channels of one pixel of
one sample. What would be a kernel per strip and peer, with hardly any work in it, is then one kernel for all.
Knows where strips lie in a tensor; nothing of messages or operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.constant import constant
from halocline.tiling.strides import CHANNELS_LAST

PACKED_ON = ("cuda",)
"""The types of device on which strips travel as rows. On a CPU a slice is copied as fast as it is indexed."""
_IMAGES = ((-2, -1), (-3, -2, -1))


@dataclass(frozen=True, eq=False)
class Strip:
    """What one peer sends or receives: where it lies in a tensor, and its size in the spatial dims."""

    peer: int
    at: tuple[Any, ...]
    size: tuple[int, ...]
    only: tuple[int, int, int] | None = None
    """The (dim, start, length) of a strip that is cut off in one dim only: torch takes that faster than an index."""

    def of(self, tensor: Tensor) -> Tensor:
        return tensor[self.at] if self.only is None else tensor.narrow(*self.only)


def packed(tensor: Tensor, dims: tuple[int, ...]) -> bool:
    """Whether strips of the tensor travel as rows.

    Both ends of a message must agree, so this may not depend on how the tensor lies in memory, which differs by rank.
    """
    return dims in _IMAGES and tensor.ndim == len(dims) + 2 and tensor.device.type in PACKED_ON


def rows(tensor: Tensor) -> Tensor | None:
    """All the pixels of a tensor as rows, if it lies so in memory."""
    if not tensor.is_contiguous(memory_format=CHANNELS_LAST[tensor.ndim]):
        return None
    channels = tensor.shape[1]
    return tensor.as_strided((tensor.numel() // max(channels, 1), channels), (channels, 1))


def pack(tensor: Tensor, strips: tuple[Strip, ...]) -> Tensor:
    """The strips of a tensor as rows."""
    pixels = rows(tensor)
    if pixels is not None:
        return pixels.index_select(0, _numbers(strips, tensor.shape[2:], tensor.shape[0], tensor.device))
    return torch.cat([as_rows(strip.of(tensor)) for strip in strips])


def as_rows(strip: Tensor) -> Tensor:
    """One strip as rows."""
    return strip.movedim(1, -1).reshape(-1, strip.shape[1])


def empty_rows(strips: tuple[Strip, ...], like: Tensor) -> Tensor:
    """Room for the strips of a tensor like this one."""
    return like.new_empty((sum(_lengths(strips, like.shape[0])), like.shape[1]))


def by_strip(packed_rows: Tensor, strips: tuple[Strip, ...], samples: int) -> tuple[Tensor, ...]:
    """The rows of each strip."""
    return packed_rows.split_with_sizes(_lengths(strips, samples))


def unpack(packed_rows: Tensor, strips: tuple[Strip, ...], samples: int) -> list[Tensor]:
    """Each strip in the shape of a tensor: views of its rows."""
    parts = zip(strips, by_strip(packed_rows, strips, samples))
    return [part.view(samples, *strip.size, -1).movedim(-1, 1) for strip, part in parts]


def place(tensor: Tensor, strips: tuple[Strip, ...], packed_rows: Tensor) -> None:
    """Write disjoint strips into a tensor."""
    pixels = rows(tensor)
    if pixels is not None:
        pixels.index_copy_(0, _numbers(strips, tensor.shape[2:], tensor.shape[0], tensor.device), packed_rows)
        return
    for strip, part in zip(strips, unpack(packed_rows, strips, tensor.shape[0])):
        strip.of(tensor).copy_(part)


def add(tensor: Tensor, rounds: Sequence[tuple[Strip, ...]], packed_rows: Tensor) -> None:
    """Add strips to a tensor; those of one round are disjoint, so that each sum has one order and comes out alike."""
    pixels = rows(tensor)
    samples, at = tensor.shape[0], 0
    for strips in rounds:
        if pixels is not None:
            numbers = _numbers(strips, tensor.shape[2:], samples, tensor.device)
            pixels.index_add_(0, numbers, packed_rows.narrow(0, at, len(numbers)))
            at += len(numbers)
            continue
        length = sum(_lengths(strips, samples))
        for strip, part in zip(strips, unpack(packed_rows.narrow(0, at, length), strips, samples)):
            strip.of(tensor).add_(part)
        at += length


@lru_cache(maxsize=4096)
def _lengths(strips: tuple[Strip, ...], samples: int) -> tuple[int, ...]:
    """How many rows each strip has."""
    return tuple(samples * prod(s.size) for s in strips)


@constant
def _numbers(strips: tuple[Strip, ...], size: torch.Size, samples: int, device: torch.device) -> Tensor:
    """The numbers of the strips' rows among those of a tensor whose spatial dims have `size`."""
    numbers = torch.arange(samples * prod(size)).view(samples, *size)
    return torch.cat([numbers[strip.at].flatten() for strip in strips]).to(device)


def copy_pixels(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)` of parts of images; a GPU copies the channels of pixels faster in words of 8 bytes."""
    ratio = 8 // source.element_size()
    if source.is_cuda and ratio > 1 and source.ndim in CHANNELS_LAST and source.dtype == target.dtype:
        if _divisible(source, ratio) and _divisible(target, ratio):
            target, source = target.movedim(1, -1).view(torch.int64), source.movedim(1, -1).view(torch.int64)
    target.copy_(source)


def _divisible(tensor: Tensor, ratio: int) -> bool:
    """Whether the channels of each pixel, side by side in memory, can be read as words of `ratio` values."""
    samples, channels, *others = tensor.stride()
    return (
        channels == 1
        and not tensor.shape[1] % ratio
        and not samples % ratio
        and not any(s % ratio for s in others)
        and not tensor.storage_offset() % ratio
    )
