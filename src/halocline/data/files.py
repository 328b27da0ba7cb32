"""Images in files as a source: opens the files of a `Listing`, checks them before training, and reads boxes of them."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocline.data.dataset import IGNORED
from halocline.data.folder import Listing
from halocline.data.images import too_small
from halocline.data.picture import BadFile, Picture, fractions, open_picture
from halocline.tiling.boxes import Box

STOP, SKIP = "stop", "skip"
POLICIES = (STOP, SKIP)

THOROUGH_PIXELS = 2**26
"""Files of up to so many pixels are decoded by the check that `skip` makes; of larger ones it reads the structure."""
OPEN_FILES = 32
"""How many files are kept open: reading the structure of a large slide anew for each box would cost more than a box."""
CHECKERS = 8
"""Files checked at once: the check waits for disks more than it computes."""
_BLOCK = 1024  # files queued for the check at once: millions would fill the memory
IGNORE = 255
"""The value of a mask's pixels that do not count (with two classes it is the second one: masks of 0 and 255)."""


class Files:
    """Images in files, with a class each or a mask each."""

    def __init__(
        self,
        listing: Listing,
        *,
        channels: int,
        classes: int,
        level: int = 0,
        image: tuple[int, int] | None = None,
        pad: int = 0,
        bad: str = STOP,
        known_bad: Collection[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Checks every file. `stop` raises about the first bad one; `skip` leaves bad ones out, which takes longer as
        it decodes them, and gives the same result in every process, or in one that tells the others its `skipped` as
        `known_bad`. Without `image` the first good file's size is the one that all must have."""
        if bad not in POLICIES:
            raise ValueError(f"{bad!r} is not a policy for bad files: use {' or '.join(POLICIES)}")
        if listing.classes and len(listing.classes) > classes:
            raise ValueError(
                f"the data has {len(listing.classes)} classes ({', '.join(listing.classes[:4])}, ...), the model "
                f"{classes}: use --num-classes {len(listing.classes)}"
            )
        self.channels = channels
        self.classes = classes
        self.level = level
        self._closed_bytes = 0
        self._pictures: OrderedDict[tuple[str, bool], Picture] = OrderedDict()
        self._owner = os.getpid()
        self.image = image
        self._pad = pad
        sizes, reasons = self._check(listing, bad, known_bad, progress)
        self.skipped: tuple[str, ...] = tuple(path for path in listing.images if path in reasons)
        kept = [i for i, path in enumerate(listing.images) if path not in reasons]
        if not kept:
            raise ValueError(f"all {len(listing.images)} files are bad, the first: {next(iter(reasons.values()))}")
        self.listing = replace(
            listing,
            images=tuple(listing.images[i] for i in kept),
            labels=tuple(listing.labels[i] for i in kept),
            masks=tuple(listing.masks[i] for i in kept) if listing.masks else (),
        )
        self._sizes = np.array([sizes[i] for i in kept], np.int32)

    def __len__(self) -> int:
        return len(self.listing.images)

    def name(self, sample: int) -> str:
        return self.listing.images[sample]

    def size(self, sample: int) -> tuple[int, int]:
        height, width = self._sizes[sample].tolist()
        return height, width

    def label(self, sample: int) -> int:
        return self.listing.labels[sample]

    def pixels(self, sample: int, box: Box) -> NDArray[np.float32]:
        picture = self._opened(self.listing.images[sample], mask=False)
        return fractions(picture.read(box)[: self.channels], picture.white)

    def mask(self, sample: int, box: Box) -> NDArray[np.int64]:
        path = self.listing.masks[sample]
        return self._classes(path, self._opened(path, mask=True).read(box)[0])

    def _classes(self, path: str, values: NDArray) -> NDArray[np.int64]:
        """A mask's values as classes."""
        with np.errstate(invalid="ignore"):  # what is no number is found below
            classes = values.astype(np.int64)
        wrong = classes != values
        if self.classes == 2:
            classes[classes == IGNORE] = 1
        elif self.classes <= IGNORE:
            classes[classes == IGNORE] = IGNORED
        wrong |= (classes >= self.classes) | ((classes < 0) & (classes != IGNORED))
        if wrong.any():
            found = values[wrong][0]
            raise BadFile(path, f"has class {found} at a pixel, and there are {self.classes} classes, from 0 on")
        return classes

    @property
    def bytes_read(self) -> int:
        return self._closed_bytes + sum(picture.bytes_read for picture in self._pictures.values())

    def close(self) -> None:
        """Closes all files; they open again when read."""
        while self._pictures:
            self._drop()

    def _opened(self, path: str, mask: bool) -> Picture:
        if self._owner != os.getpid():  # a worker opens its own: OpenSlide's handles are not to be shared
            self._closed_bytes, self._pictures, self._owner = self.bytes_read, OrderedDict(), os.getpid()
        key = (path, mask)
        if key not in self._pictures:
            while len(self._pictures) >= OPEN_FILES:
                self._drop()
            self._pictures[key] = self._open_mask(path) if mask else open_picture(path, self.level)
        self._pictures.move_to_end(key)
        return self._pictures[key]

    def _drop(self) -> None:
        _, picture = self._pictures.popitem(last=False)
        self._closed_bytes += picture.bytes_read
        picture.close()

    def _open_mask(self, path: str) -> Picture:
        """A mask, at the image's level where it is a pyramid too, else as it is."""
        if self.level:
            try:
                return open_picture(path, self.level, indices=True)
            except BadFile:
                pass
        return open_picture(path, indices=True)

    def _check(
        self,
        listing: Listing,
        bad: str,
        known_bad: Collection[str] | None,
        progress: Callable[[int, int], None] | None,
    ) -> tuple[list[tuple[int, int]], dict[str, str]]:
        """The size of every image and, of those to leave out, why."""
        left_out = set(known_bad or ())
        thorough = bad == SKIP and known_bad is None
        stops = bad == STOP or known_bad is not None  # who was told must not leave out others than the rest does
        masks = listing.masks or (None,) * len(listing.images)
        pairs = list(zip(listing.images, masks))

        def checked(pair: tuple[str, str | None]) -> tuple[int, int] | BadFile:
            if pair[0] in left_out:
                return BadFile(pair[0], "is left out")
            try:
                return self._check_file(*pair, thorough)
            except BadFile as error:
                if stops:
                    raise
                return error

        if self.image is None:  # the first good file's: a bad one's would be asked of all the others
            self.image = next((size for size in map(checked, pairs) if not isinstance(size, BadFile)), None)
        sizes: list[tuple[int, int]] = []
        reasons: dict[str, str] = {}
        with ThreadPoolExecutor(CHECKERS) as pool:
            for start in range(0, len(pairs), _BLOCK):
                block = pairs[start : start + _BLOCK]
                for (path, _), result in zip(block, pool.map(checked, block)):
                    if isinstance(result, BadFile):
                        reasons[path] = str(result)
                    sizes.append((0, 0) if isinstance(result, BadFile) else result)
                    if progress:
                        progress(len(sizes), len(pairs))
        return sizes, reasons

    def _check_file(self, path: str, mask: str | None, thorough: bool) -> tuple[int, int]:
        picture = open_picture(path, self.level)
        try:
            has = picture.channels
            if has != self.channels and not (picture.alpha and has == self.channels + 1):
                raise BadFile(
                    path,
                    f"has {has} channels, and {self.channels} are asked for: convert it, or train a model for {has} "
                    f"(--model-options channels={has})",
                )
            size = picture.size
            room = 2 * self._pad
            if self.image and (size[0] + room < self.image[0] or size[1] + room < self.image[1]):
                raise BadFile(path, too_small("it", size, self.image))
            picture.check(thorough and size[0] * size[1] <= THOROUGH_PIXELS)
        finally:
            picture.close()
        if mask is not None:
            self._check_mask(path, mask, size, thorough)
        return size

    def _check_mask(self, path: str, mask: str, size: tuple[int, int], thorough: bool) -> None:
        if not mask:
            raise BadFile(path, "has no mask of the same name")
        picture = self._open_mask(mask)
        try:
            if picture.channels != 1:
                raise BadFile(mask, f"has {picture.channels} channels: a mask has one, with a class number per pixel")
            if picture.size != size:
                raise BadFile(
                    mask,
                    f"has {picture.size[0]} x {picture.size[1]} pixels, its image {size[0]} x {size[1]}: "
                    f"they must be the same",
                )
            picture.check(thorough=False)
            if thorough and size[0] * size[1] <= THOROUGH_PIXELS:
                self._classes(mask, picture.read(((0, size[0]), (0, size[1])))[0])
        finally:
            picture.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pictures": OrderedDict(), "_closed_bytes": 0}
