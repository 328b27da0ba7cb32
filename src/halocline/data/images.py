"""Images as a model takes them: of one size, with values that are normalised, augmented for training, and a class each
or a class per pixel. Where the pixels come from is a `Source`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halocline.data.augment import Augment, centred
from halocline.data.dataset import IGNORED, INPUT, TARGET, Spec, full_box
from halocline.tiling.boxes import Box, clip, contains, is_empty, shape, slices


class Source(Protocol):
    """Images of any sizes, stored or generated."""

    @property
    def channels(self) -> int: ...

    @property
    def classes(self) -> int: ...

    @property
    def bytes_read(self) -> int:
        """From files, so far."""

    @property
    def skipped(self) -> tuple[str, ...]:
        """Files left out because they are bad."""

    def __len__(self) -> int: ...

    def name(self, sample: int) -> str:
        """What to call an image in a message: its path."""

    def size(self, sample: int) -> tuple[int, int]: ...

    def pixels(self, sample: int, box: Box) -> NDArray[np.float32]:
        """The pixels of a box inside the image, channels first, as fractions of white."""

    def label(self, sample: int) -> int: ...

    def mask(self, sample: int, box: Box) -> NDArray[np.int64]:
        """The class of each pixel of a box inside the image, or `IGNORED`."""


class Images:
    """A dataset of images. A file larger than `image` is cropped: anywhere where `augment` says so, else its middle."""

    def __init__(
        self,
        source: Source,
        *,
        image: tuple[int, int],
        segmentation: bool = False,
        augment: Augment | None = None,
        seed: int = 0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self.source = source
        self.classes, self.skipped = source.classes, source.skipped
        self.image = image
        self.augment = augment
        self.seed = seed
        self.segmentation = segmentation
        self._mean = _per_channel("mean", mean, source.channels)
        self._std = _per_channel("std", std, source.channels)
        if self._std is not None and not (self._std > 0).all():
            raise ValueError(f"std {tuple(std or ())} has a value that is not above 0: leave it out to divide by 1")
        self.inputs = (Spec((source.channels, *image)),)
        self.targets = (Spec(image if segmentation else (), torch.int64),)

    @property
    def bytes_read(self) -> int:
        return self.source.bytes_read

    def __len__(self) -> int:
        return len(self.source)

    def read(self, sample: int, what: str, box: Box | None = None, *, part: int = 0, epoch: int = 0) -> Tensor:
        if what not in (INPUT, TARGET) or part:
            raise ValueError(f"images have one input and one target, not {what} {part}")
        if what == TARGET and not self.segmentation:
            return torch.tensor(self.source.label(sample))
        spec = self.inputs[0] if what == INPUT else self.targets[0]
        wanted = full_box(spec) if box is None else box
        if not contains(full_box(spec), wanted):
            raise ValueError(f"box {wanted} is not inside the image, which has size {self.image}")
        draw = (self.seed, epoch, sample)
        size = self.source.size(sample)
        room = 2 * self.augment.pad if self.augment else 0
        if size[0] + room < self.image[0] or size[1] + room < self.image[1]:
            raise ValueError(too_small(self.source.name(sample), size, self.image))
        view = self.augment.view(self.image, size, draw) if self.augment else centred(self.image, size)
        seen = view.source(wanted)
        inside = clip(seen, size)
        if what == TARGET:
            classes = np.full(shape(seen), IGNORED, np.int64)
            if not is_empty(inside):
                classes[slices(inside, seen)] = self.source.mask(sample, inside)
            return torch.from_numpy(view.turn(classes))
        if inside == seen and not is_empty(inside):
            pixels = self.source.pixels(sample, inside)
        else:
            pixels = np.zeros((self.source.channels, *shape(seen)), np.float32)
            if not is_empty(inside):
                pixels[(slice(None), *slices(inside, seen))] = self.source.pixels(sample, inside)
        if self.augment:
            pixels = self.augment.coloured(pixels, draw)
        if self._mean is not None:
            pixels = pixels - self._mean
        if self._std is not None:
            pixels = pixels / self._std
        return torch.from_numpy(view.turn(pixels)).to(spec.dtype)


def too_small(name: str, size: tuple[int, int], image: tuple[int, int]) -> str:
    """Why an image cannot be used."""
    return (
        f"{name} has {size[0]} x {size[1]} pixels, fewer than the {image[0]} x {image[1]} asked for: "
        f"ask for a smaller image size, or leave the file out"
    )


def _per_channel(name: str, values: Sequence[float] | None, channels: int) -> NDArray[np.float32] | None:
    if not values:
        return None
    if len(values) not in (1, channels):
        raise ValueError(f"{name} has {len(values)} values for {channels} channels: give one value, or one per channel")
    return np.array(values, np.float32).reshape(-1, 1, 1)
