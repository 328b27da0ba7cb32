"""One image file, whatever its format: its size, its channels, and the pixels of a box of it. The formats are
`raster` (decoded whole), `tiff` (decoded tile by tile) and `slide` (through OpenSlide).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from halocline.tiling.boxes import Box

RASTER = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".jp2")
TIFF = (".tif", ".tiff", ".btf", ".tf2", ".tf8")
TIFF_SLIDE = (".svs",)
"""Slides that are plain TIFF inside: read without OpenSlide where it is not installed."""
SLIDE = (".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide", ".dcm", ".zvi", ".czi")
SUFFIXES = (*RASTER, *TIFF, *TIFF_SLIDE, *SLIDE)


class BadFile(ValueError):
    """A file that cannot be used: its path and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class Picture(Protocol):
    """An image file, opened. Sizes and boxes are of the pyramid's level that was asked for."""

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def channels(self) -> int:
        """Alpha included."""

    @property
    def alpha(self) -> bool:
        """Whether the last channel says how opaque a pixel is."""

    @property
    def white(self) -> float:
        """The value that counts as 1; 0 for files whose values are taken as they are."""

    @property
    def bytes_read(self) -> int:
        """From the file, so far."""

    def read(self, box: Box) -> NDArray:
        """The pixels of a box inside the image, channels first."""

    def check(self, thorough: bool) -> None:
        """Raises where the file is damaged, as far as can be told without decoding it, or with it."""

    def close(self) -> None: ...


def open_picture(path: str, level: int = 0, indices: bool = False) -> Picture:
    """Opens an image file at a level of its pyramid. With `indices`, a palette's numbers are read, not its colours."""
    suffix = Path(path).suffix.lower()
    with naming(path):
        if Path(path).stat().st_size == 0:
            raise BadFile(path, "the file is empty")
        if suffix in TIFF or (suffix in TIFF_SLIDE and importlib.util.find_spec("openslide") is None):
            from halocline.data.tiff import TiffPicture

            return TiffPicture(path, level, indices)
        if suffix in SLIDE or suffix in TIFF_SLIDE:
            from halocline.data.slide import SlidePicture

            return SlidePicture(path, level)
        if suffix in RASTER:
            from halocline.data.raster import RasterPicture

            if level:
                raise BadFile(path, f"has no pyramid, so there is no level {level}: use level 0, or bring a TIFF")
            return RasterPicture(path, indices)
    raise BadFile(path, f"{suffix or 'a file without a suffix'} is not an image: bring {', '.join(SUFFIXES)}")


def is_picture(path: Path) -> bool:
    """Whether a file is one of those read here, by its name."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Whatever a decoder raises about a file, as one sentence with its path. What the machine lacks is not the file's
    fault and passes through."""
    try:
        yield
    except (BadFile, MissingExtra, MemoryError):
        raise
    except FileNotFoundError:
        raise BadFile(path, "there is no such file") from None
    except Exception as error:  # decoders raise of all kinds: OSError, SyntaxError, struct.error, zlib.error, ...
        words = " ".join(str(error).split()) or type(error).__name__
        raise BadFile(path, f"cannot be read ({words})") from error


class MissingExtra(ValueError):
    """An optional package is needed that is not installed."""


def fractions(pixels: NDArray, white: float) -> NDArray[np.float32]:
    """Values as fractions of white."""
    if pixels.dtype == np.bool_ or not white:
        return pixels.astype(np.float32)
    if np.issubdtype(pixels.dtype, np.signedinteger):  # from black at the lowest value to white at the highest
        return (pixels.astype(np.float64) / (2 * white + 1) + (white + 1) / (2 * white + 1)).astype(np.float32)
    return pixels.astype(np.float32) / np.float32(white)
