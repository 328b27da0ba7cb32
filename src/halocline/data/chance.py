"""Random numbers that are a function of their coordinates (seed, sample, row, ...), not of the order in which they are
drawn: any process gets the same ones for any part of an image. Knows integers only.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def purposes(room: str, count: int) -> range:
    """Numbers for what chance is used for, unlike those of any other room: the same coordinates then mean nothing to
    each other. (An order drawn from the very numbers that labels are drawn from would sort the labels.)"""
    first = (zlib.crc32(room.encode()) + 1) << 16
    return range(first, first + count)


def key(*parts: int) -> int:
    """A 64-bit number that depends on every part and on their order (the finaliser of SplitMix64, folded)."""
    mixed = 0
    for part in parts:
        z = (mixed ^ ((int(part) + 1) * _GOLDEN)) & _MASK  # int: one of numpy would overflow
        z = ((z ^ (z >> 30)) * _FIRST) & _MASK
        z = ((z ^ (z >> 27)) * _SECOND) & _MASK
        mixed = z ^ (z >> 31)
    return mixed


def words(start: int | Words, coordinates: NDArray[np.integer]) -> Words:
    """`key(..., coordinate)` for an array of coordinates, where `start` is the key of what comes before; the two
    broadcast, so words(words(start, rows[:, None]), columns) is a table."""
    before = np.asarray(start, dtype=np.uint64)
    with np.errstate(over="ignore"):  # wrapping round is the point
        z = before ^ ((coordinates.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
        return z ^ (z >> np.uint64(31))


def uniform(*parts: int) -> float:
    """A number in [0, 1)."""
    return (key(*parts) >> 11) * 2.0**-53


def below(limit: int, *parts: int) -> int:
    """An integer in [0, limit)."""
    return (key(*parts) * limit) >> 64


def permutation(count: int, *parts: int) -> NDArray[np.int64]:
    """The numbers 0 .. count - 1 in an order of chance."""
    return np.argsort(words(key(*parts), np.arange(count)), kind="stable")


def bytes_of(start: int, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[np.uint8]:
    """The bytes of a noise plane in a box. One word gives eight neighbouring bytes of a row, so that noise costs an
    eighth of a number per pixel."""
    first, last = columns[0] // 8, -(-columns[1] // 8)
    table = words(words(start, np.arange(*rows)[:, None]), np.arange(first, last))
    plane = table.astype("<u8").view(np.uint8)
    return plane[:, columns[0] - 8 * first : columns[1] - 8 * first]
