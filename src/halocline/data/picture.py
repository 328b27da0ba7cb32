"""One image file, whatever its format: its size, its channels, and the pixels of a box of it. Rasters are decoded
whole, slides through OpenSlide, and TIFF, which has a file of its own here, tile by tile.
"""

from __future__ import annotations

import importlib.util
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocline.tiling.boxes import Box, intersect, shape, slices

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


class Picture(ABC):
    """An image file, opened. Sizes and boxes are of the pyramid's level that was asked for."""

    path: str
    size: tuple[int, int]
    channels: int
    """Alpha included."""
    alpha = False
    """Whether the last channel says how opaque a pixel is."""
    white: float
    """The value that counts as 1; 0 for files whose values are taken as they are."""
    band: int
    """Rows that a thorough check decodes at once."""

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """From the file, so far."""

    @abstractmethod
    def read(self, box: Box) -> NDArray:
        """The pixels of a box inside the image, channels first."""

    def check(self, thorough: bool) -> None:
        """Raises where the file is damaged, as far as can be told without decoding it, or with it."""
        if thorough:
            for top in range(0, self.size[0], self.band):
                self.read(((top, min(top + self.band, self.size[0])), (0, self.size[1])))

    @abstractmethod
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
            return SlidePicture(path, level)
        if suffix in RASTER:
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


def needed(module: str, message: str) -> Any:
    """An optional module, or what to say where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(message) from None


def fractions(pixels: NDArray, white: float) -> NDArray[np.float32]:
    """Values as fractions of white."""
    if pixels.dtype == np.bool_ or not white:
        return pixels.astype(np.float32)
    if np.issubdtype(pixels.dtype, np.signedinteger):  # from black at the lowest value to white at the highest
        return (pixels.astype(np.float64) / (2 * white + 1) + (white + 1) / (2 * white + 1)).astype(np.float32)
    return pixels.astype(np.float32) / np.float32(white)


# -- rasters ---------------------------------------------------------------------------------------------------------

_CHANNELS = {"1": 1, "L": 1, "P": 1, "I": 1, "I;16": 1, "I;16L": 1, "I;16B": 1, "F": 1}
_CHANNELS |= {"LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
_DEEP = {2: "RGB", 4: "LA", 6: "RGBA"}
"""A PNG's colour types with several channels, as Pillow's modes."""
_PNG = b"\x89PNG\r\n\x1a\n"
_LIMIT = threading.Lock()


class RasterPicture(Picture):
    """A file that can only be decoded whole: PNG, JPEG and others that Pillow knows. A box costs the whole file.
    Keeps no file open and no pixels."""

    bytes_read = 0

    def __init__(self, path: str, indices: bool = False) -> None:
        self.path = path
        with self._opened() as image:
            self.size = (image.height, image.width)
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
            why = f"{self.path} has 16 bits per colour and needs imagecodecs: install halocline[images]"
            return needed("imagecodecs", why).png_decode(Path(self.path).read_bytes())
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
            with _any_size(needed("PIL.Image", f"{self.path} needs Pillow: install halocline[images]")) as pillow:
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


# -- slides ----------------------------------------------------------------------------------------------------------

BLOCK = 512
_BACKGROUND = "openslide.background-color"


class SlidePicture(Picture):
    """A whole-slide image of a scanner's own format (SVS, NDPI, MRXS and others) at a level of its pyramid: RGB, the
    parts that were not scanned in the slide's background colour.

    It is read in blocks that always start at the same places: a level whose pixels are not a whole number of the
    scanner's is resampled, and only so is a box the same pixels as the same part of a larger box.
    """

    channels = 3
    white = 255.0
    band = BLOCK

    def __init__(self, path: str, level: int = 0) -> None:
        openslide = needed("openslide", f"{path} needs OpenSlide: install halocline[wsi], or save it as a tiled TIFF")
        self.path = path
        self._blocks_read = 0
        with naming(path):
            if openslide.OpenSlide.detect_format(path) is None:
                raise BadFile(path, "is not a slide that OpenSlide knows")
            self._slide: Any = openslide.OpenSlide(path)
        levels = self._slide.level_count
        if not 0 <= level < levels:
            raise BadFile(path, f"has {levels} levels and no level {level}: use 0 to {levels - 1}")
        self._level = level
        width, height = self._slide.level_dimensions[level]
        self.size = (height, width)
        self._background = f"#{self._slide.properties.get(_BACKGROUND, 'ffffff')}"

    @property
    def bytes_read(self) -> int:
        """An estimate, since OpenSlide does not tell: the file's bytes times the share of its pixels read."""
        width, height = self._slide.level_dimensions[0]
        scale = self._slide.level_downsamples[self._level] ** 2
        return int(Path(self.path).stat().st_size * self._blocks_read * BLOCK**2 * scale / (width * height))

    def read(self, box: Box) -> NDArray:
        (top, bottom), (left, right) = box
        result = np.empty((*shape(box), 3), np.uint8)
        with naming(self.path):
            for row in range(top // BLOCK, -(-bottom // BLOCK)):
                for column in range(left // BLOCK, -(-right // BLOCK)):
                    held = (
                        (row * BLOCK, min((row + 1) * BLOCK, self.size[0])),
                        (column * BLOCK, min((column + 1) * BLOCK, self.size[1])),
                    )
                    inside = intersect(held, box)
                    result[slices(inside, box)] = self._block(held)[slices(inside, held)]
        return result.transpose(2, 0, 1)

    def _block(self, held: Box) -> NDArray[np.uint8]:
        pillow = needed("PIL.Image", f"{self.path} needs Pillow: install halocline[images]")
        scale = self._slide.level_downsamples[self._level]
        height, width = shape(held)
        corner = round(held[1][0] * scale), round(held[0][0] * scale)
        region = self._slide.read_region(corner, self._level, (width, height))
        self._blocks_read += 1
        opaque = pillow.new("RGB", region.size, self._background)
        opaque.paste(region, mask=region)
        return np.asarray(opaque)

    def close(self) -> None:
        self._slide.close()
