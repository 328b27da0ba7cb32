"""Whole-slide images of scanners' own formats (SVS, NDPI, MRXS and others), through OpenSlide.

They are read in blocks that always start at the same places: a level whose pixels are not a whole number of the
scanner's is resampled, and only so is a box the same pixels as the same part of a larger box.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocline.data.picture import BadFile, MissingExtra, naming
from halocline.tiling.boxes import Box, intersect, shape, slices

BLOCK = 512
_BACKGROUND = "openslide.background-color"


class SlidePicture:
    """A slide at a level of its pyramid: RGB, the parts that were not scanned in the slide's background colour."""

    channels = 3
    alpha = False
    white = 255.0

    def __init__(self, path: str, level: int = 0) -> None:
        openslide = _openslide(path)
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
        self.size: tuple[int, int] = (height, width)
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
        from PIL import Image

        scale = self._slide.level_downsamples[self._level]
        height, width = shape(held)
        corner = round(held[1][0] * scale), round(held[0][0] * scale)
        region = self._slide.read_region(corner, self._level, (width, height))
        self._blocks_read += 1
        opaque = Image.new("RGB", region.size, self._background)
        opaque.paste(region, mask=region)
        return np.asarray(opaque)

    def check(self, thorough: bool) -> None:
        if thorough:
            for top in range(0, self.size[0], BLOCK):
                self.read(((top, min(top + BLOCK, self.size[0])), (0, self.size[1])))

    def close(self) -> None:
        self._slide.close()


def _openslide(path: str) -> Any:
    try:
        import openslide
    except ImportError:
        raise MissingExtra(f"{path} needs OpenSlide: install halocline[wsi], or save it as a tiled TIFF") from None
    return openslide
