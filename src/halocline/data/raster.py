"""Image files that can only be decoded whole: PNG, JPEG and others that Pillow knows. A box costs the whole file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocline.data.picture import BadFile, MissingExtra, naming
from halocline.tiling.boxes import Box

_CHANNELS = {"1": 1, "L": 1, "P": 1, "I": 1, "I;16": 1, "I;16L": 1, "I;16B": 1, "F": 1}
_CHANNELS |= {"LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
_DEEP = {2: "RGB", 4: "LA", 6: "RGBA"}
"""A PNG's colour types with several channels, as Pillow's modes."""
_PNG = b"\x89PNG\r\n\x1a\n"
_LIMIT = threading.Lock()


class RasterPicture:
    """A file that Pillow decodes. Keeps no file open and no pixels."""

    def __init__(self, path: str, indices: bool = False) -> None:
        self.path = path
        self.bytes_read = 0
        with self._opened() as image:
            self.size: tuple[int, int] = (image.height, image.width)
            deep = _deep_mode(path)
            self._mode = deep or _mode(image, indices)
            self._deep = deep is not None
        if 0 in self.size:
            raise BadFile(path, f"has {self.size[0]} x {self.size[1]} pixels: there is nothing to read")
        if self._mode not in _CHANNELS:
            raise BadFile(path, f"has colours of mode {self._mode}, which is not read: save it as RGB or grey")
        self.channels = _CHANNELS[self._mode]
        self.alpha = self._mode in ("LA", "RGBA")
        sixteen_bits = self._deep or self._mode[0] == "I"
        self.white = {"F": 0.0, "1": 1.0}.get(self._mode, 65535.0 if sixteen_bits else 255.0)

    def read(self, box: Box) -> NDArray:
        with naming(self.path):
            pixels = self._pixels()
            self.bytes_read += Path(self.path).stat().st_size
        if pixels.shape[:2] != self.size:
            raise BadFile(self.path, f"has {pixels.shape[:2]} pixels now, {self.size} when it was opened")
        return np.atleast_3d(pixels).transpose(2, 0, 1)[:, slice(*box[0]), slice(*box[1])]

    def _pixels(self) -> NDArray:
        if self._deep:
            return _codecs(self.path).png_decode(Path(self.path).read_bytes())
        with self._opened() as image:
            plain = image if image.mode == self._mode else image.convert(self._mode)
            # Mode I is Pillow's for a PGM of 16 bits: signed, though the file's values are not.
            return np.asarray(plain).astype(np.uint16) if self._mode == "I" else np.asarray(plain)

    def check(self, thorough: bool) -> None:
        if thorough:
            with naming(self.path):
                self._pixels()

    def close(self) -> None:
        pass

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with open(self.path, "rb") as file:
            with _any_size(_pillow(self.path)) as pillow:
                image = pillow.open(file)
            with image:
                yield image


def _mode(image: Any, indices: bool) -> str:
    """The mode an image is read in."""
    if image.mode in ("P", "PA"):
        if indices and image.mode == "P":
            return "P"
        return "RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB"
    return "RGB" if image.mode == "YCbCr" else image.mode


def _deep_mode(path: str) -> str | None:
    """The mode of a PNG with 16 bits for each of several channels; Pillow would drop the lower eight without a word."""
    with open(path, "rb") as file:
        head = file.read(26)
    is_deep = head[:8] == _PNG and len(head) == 26 and head[24] == 16
    return _DEEP.get(head[25]) if is_deep else None


def _pillow(path: str) -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra(f"{path} needs Pillow: install halocline[images]") from None
    return Image


def _codecs(path: str) -> ModuleType:
    try:
        import imagecodecs
    except ImportError:
        raise MissingExtra(f"{path} has 16 bits per colour and needs imagecodecs: install halocline[images]") from None
    return imagecodecs


@contextmanager
def _any_size(pillow: Any) -> Iterator[Any]:
    """Pillow without its limit on pixels: large images are what we are for. The limit is Pillow's global, hence the
    lock."""
    with _LIMIT:
        limit, pillow.MAX_IMAGE_PIXELS = pillow.MAX_IMAGE_PIXELS, None
        try:
            yield pillow
        finally:
            pillow.MAX_IMAGE_PIXELS = limit
