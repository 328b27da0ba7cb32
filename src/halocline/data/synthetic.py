"""Synthetic images: noise over a pattern that tells the class, so that there is something to learn. Every pixel is a
function of (seed, sample, channel, row, column), so that a box costs what its pixels cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halocline.data import chance
from halocline.tiling.boxes import Box, shape

CELL = 32
"""Pixels of a side of the squares that have a class each, for segmentation."""

_LABEL, _NOISE, _CELL, _WAVE = chance.purposes("synthetic", 4)


@dataclass(frozen=True)
class Synthetic:
    """Images of one size with a class each, which also decides their brightness and the direction of faint stripes.
    For segmentation every square of 32 pixels has a class."""

    samples: int
    image: tuple[int, int]
    channels: int = 3
    classes: int = 10
    seed: int = 0
    segmentation: bool = False

    bytes_read = 0
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("samples", "channels", "classes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} is below 1: synthetic images need at least one")

    def __len__(self) -> int:
        return self.samples

    def name(self, sample: int) -> str:
        return f"synthetic image {sample}"

    def size(self, sample: int) -> tuple[int, int]:
        return self.image

    def label(self, sample: int) -> int:
        return chance.below(self.classes, self.seed, _LABEL, sample)

    def mask(self, sample: int, box: Box) -> NDArray[np.int64]:
        (top, bottom), (left, right) = box
        rows, columns = np.arange(top, bottom) // CELL, np.arange(left, right) // CELL
        cells = chance.words(
            chance.words(
                chance.key(self.seed, _CELL, sample), np.arange(top // CELL, (bottom - 1) // CELL + 1)[:, None]
            ),
            np.arange(left // CELL, (right - 1) // CELL + 1),
        )
        classes = (cells % np.uint64(self.classes)).astype(np.int64)
        return classes[np.ix_(rows - rows[0], columns - columns[0])]

    def pixels(self, sample: int, box: Box) -> NDArray[np.float32]:
        shown = self.mask(sample, box) if self.segmentation else np.array(self.label(sample))
        # A sum of bytes that stays below 256: noise below 128, stripes below 64, brightness below 64.
        level = (63 * np.arange(self.classes) // max(1, self.classes - 1)).astype(np.uint8)
        wave = chance.words(chance.key(self.seed, _WAVE), np.arange(self.classes))
        down, across = (((wave >> np.uint64(shift)) % np.uint64(40)).astype(np.uint8) for shift in (0, 32))
        rows = np.arange(*box[0]).astype(np.uint8)[:, None]
        columns = np.arange(*box[1]).astype(np.uint8)
        pattern = ((down[shown] * rows + across[shown] * columns) >> 2) + level[shown]
        bytes_chw = np.empty((self.channels, *shape(box)), np.uint8)
        for channel in range(self.channels):
            noise = chance.bytes_of(chance.key(self.seed, _NOISE, sample, channel), *box)
            bytes_chw[channel] = (noise >> 1) + pattern
        return bytes_chw.astype(np.float32) / np.float32(255)
