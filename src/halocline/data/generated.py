"""Images that are made up: synthetic ones and lesions. Every pixel is a function of (seed, sample, channel, row,
column), so that any box can be made without the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from halocline.data import chance
from halocline.tiling.boxes import Box, Interval, intersect, is_empty, shape, slices


@dataclass(frozen=True)
class Generated:
    """Images of one size with a class each, or a class per pixel."""

    samples: int
    image: tuple[int, int]
    channels: int = 3
    classes: int = 10
    seed: int = 0
    segmentation: bool = False

    kind: ClassVar[str]
    bytes_read = 0
    skipped: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in ("samples", "channels", "classes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} is below 1: use 1 or more")

    def __len__(self) -> int:
        return self.samples

    def name(self, sample: int) -> str:
        return f"{self.kind} image {sample}"

    def size(self, sample: int) -> tuple[int, int]:
        return self.image


# -- synthetic -----------------------------------------------------------------------------------------------------

CELL = 32
"""Pixels of a side of the squares that have a class each, for segmentation."""

_CLASS, _GRAIN, _CELL, _WAVE = chance.purposes("synthetic", 4)


class Synthetic(Generated):
    """Noise over a pattern that tells the class, so that there is something to learn: the class decides the brightness
    and the direction of faint stripes. For segmentation every square of 32 pixels has a class."""

    kind = "synthetic"

    def label(self, sample: int) -> int:
        return chance.below(self.classes, self.seed, _CLASS, sample)

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
            noise = chance.bytes_of(chance.key(self.seed, _GRAIN, sample, channel), *box)
            bytes_chw[channel] = (noise >> 1) + pattern
        return bytes_chw.astype(np.float32) / np.float32(255)


# -- lesions -------------------------------------------------------------------------------------------------------

STRIPES = ((1, 1), (1, -1), (1, 0), (0, 1))
"""The kinds of lesion: the direction (down, right) across the stripes, leaning left, right, lying and standing."""
PERIOD = 4
"""Pixels from stripe to stripe: gone in an image of a quarter of the size."""
TINT = ((205, 150, 185), (150, 95, 150))
"""The tissue's two colours."""

_LABEL, _ROW, _COLUMN, _TISSUE, _NOISE, _PHASE = chance.purposes("lesion", 6)


@dataclass(frozen=True)
class Lesions(Generated):
    """High-resolution images in which a few pixels decide: somewhere on noisy tissue lies a small round lesion whose
    fine stripes lean one way or another. The stripes have the mean and the contrast of no stripes at all once the image
    is made smaller, so a network must see the image at its full size.

    A lesion's kind is the class; of a mask, 0 is tissue and kind k is class k + 1.
    """

    image: tuple[int, int] = (512, 512)
    classes: int = 2
    diameter: int = 24
    """Pixels across a lesion: the share of a 512 x 512 image that decides is 0.2%."""
    kind = "lesion"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self._kinds <= len(STRIPES) or (self._kinds < 2 and not self.segmentation):
            low, high = (2, 5) if self.segmentation else (2, 4)
            raise ValueError(f"there are lesions of {low} to {high} classes, not {self.classes}: use {low}")
        if self.channels not in (1, 3):
            raise ValueError(f"lesion images have 1 or 3 channels, not {self.channels}: use 3")
        if min(self.image) < self.diameter:
            raise ValueError(f"a lesion of {self.diameter} pixels does not fit an image of {self.image}: enlarge it")

    @property
    def _kinds(self) -> int:
        return self.classes - 1 if self.segmentation else self.classes

    def label(self, sample: int) -> int:
        return chance.below(self._kinds, self.seed, _LABEL, sample)

    def place(self, sample: int) -> Box:
        """The box around an image's lesion."""
        top, left = (
            chance.below(size - self.diameter + 1, self.seed, purpose, sample)
            for size, purpose in zip(self.image, (_ROW, _COLUMN))
        )
        return (top, top + self.diameter), (left, left + self.diameter)

    def mask(self, sample: int, box: Box) -> NDArray[np.int64]:
        classes = np.zeros(shape(box), np.int64)
        seen = intersect(self.place(sample), box)
        if not is_empty(seen):
            classes[slices(seen, box)] = self._disc(sample, seen) * (1 + self.label(sample))
        return classes

    def _disc(self, sample: int, box: Box) -> NDArray[np.bool_]:
        """Which pixels of a box belong to the lesion."""
        middle = [start + stop - 1 for start, stop in self.place(sample)]  # doubled, to stay in integers
        rows, columns = 2 * np.arange(*box[0])[:, None] - middle[0], 2 * np.arange(*box[1]) - middle[1]
        return rows**2 + columns**2 <= self.diameter**2

    def pixels(self, sample: int, box: Box) -> NDArray[np.float32]:
        tissue = _clouds(chance.key(self.seed, _TISSUE, sample), box)
        image = np.empty((self.channels, *shape(box)), np.float32)
        for channel in range(self.channels):
            light, dark = (TINT[shade][channel] / 255 for shade in (0, 1))
            noise = chance.bytes_of(chance.key(self.seed, _NOISE, sample, channel), *box)
            grain = noise.astype(np.float32) * np.float32(0.16 / 255) - np.float32(0.08)
            image[channel] = tissue * np.float32(dark - light) + np.float32(light) + grain
        seen = intersect(self.place(sample), box)
        if not is_empty(seen):
            down, right = STRIPES[self.label(sample)]
            phase = chance.below(PERIOD, self.seed, _PHASE, sample)
            across = down * np.arange(*seen[0])[:, None] + right * np.arange(*seen[1]) + phase
            stripes = np.where(across % PERIOD < PERIOD // 2, np.float32(0.22), np.float32(-0.22))
            image[(slice(None), *slices(seen, box))] += stripes * self._disc(sample, seen)
        return np.clip(image, 0, 1)


def _clouds(start: int, box: Box) -> NDArray[np.float32]:
    """Smooth values in [0, 1]: chance on two lattices, with straight lines between the lattice points."""
    total = np.zeros(shape(box), np.float32)
    for spacing, weight in ((64, 0.65), (16, 0.35)):
        lattice, (rows, down), (columns, right) = _lattice(chance.key(start, spacing), box, spacing)
        upper = lattice[np.ix_(rows, columns)] * (1 - right) + lattice[np.ix_(rows, columns + 1)] * right
        lower = lattice[np.ix_(rows + 1, columns)] * (1 - right) + lattice[np.ix_(rows + 1, columns + 1)] * right
        total += np.float32(weight) * (upper * (1 - down[:, None]) + lower * down[:, None])
    return total


_Steps = tuple[NDArray[np.int64], NDArray[np.float32]]


def _lattice(start: int, box: Box, spacing: int) -> tuple[NDArray[np.float32], _Steps, _Steps]:
    """The lattice around a box, and for its rows and columns the point before and how far behind it they lie."""

    def steps(interval: Interval) -> tuple[NDArray[np.int64], _Steps]:
        first, last = interval[0] // spacing, (interval[1] - 1) // spacing + 1
        places = np.arange(*interval)
        behind = (places % spacing).astype(np.float32) / np.float32(spacing)
        return np.arange(first, last + 1), (places // spacing - first, behind)

    rows, down = steps(box[0])
    columns, right = steps(box[1])
    table = chance.words(chance.words(start, rows[:, None]), columns)
    return (table >> np.uint64(40)).astype(np.float32) / np.float32(2**24), down, right
