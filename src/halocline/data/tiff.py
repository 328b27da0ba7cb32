"""TIFF, BigTIFF and OME-TIFF files, plain or pyramids, of which only the tiles or strips that meet a box are read and
decoded; of uncompressed strips only the pixels of the box.

Legend: a *segment* is a tile or a strip; a *plane* is a page that holds one channel or several.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from halocline.data.picture import BadFile, MissingExtra, Picture, naming
from halocline.tiling.boxes import Box, intersect, shape, slices

_CHANNEL_AXES = "SCQ"
"""Samples of a pixel, channels of OME, and an axis that the writer left unnamed."""
_ALPHA = (1, 2)  # ExtraSamples: associated and unassociated alpha
_PALETTE, _WHITE_IS_ZERO, _UNCOMPRESSED, _SEPARATE = 3, 0, 1, 2
_NOT_RGB = {6: "YCbCr", 8: "CIE Lab", 9: "ICC Lab", 10: "ITU Lab", 32844: "LogL", 32845: "LogLuv"}
"""Colours (PhotometricInterpretation) that would be taken for red, green and blue; JPEG's YCbCr is decoded to RGB."""
_JPEG = (6, 7, 33007, 34892)
_APERIO_YCBCR = 33003  # JPEG 2000 of YCbCr, whatever the file says beside it


class TiffPicture(Picture):
    """The first image of a TIFF file, at a level of its pyramid."""

    band = 2048

    def __init__(self, path: str, level: int = 0, indices: bool = False) -> None:
        self.path = path
        self._file = CountingFile(path)
        try:
            with naming(path):
                self._open(level, indices)
        except BaseException:
            self._file.close()
            raise

    def _open(self, level: int, indices: bool) -> None:
        series = tifffile.TiffFile(self._file).series  # type: ignore[arg-type]
        if not series:
            raise BadFile(self.path, "holds no image")
        levels = series[0].levels
        if not 0 <= level < len(levels):
            raise BadFile(self.path, f"has {len(levels)} levels and no level {level}: use 0 to {len(levels) - 1}")
        chosen = levels[level]
        lengths = {axis: length for axis, length in zip(chosen.axes, chosen.shape)}
        others = {a: n for a, n in lengths.items() if n != 1 and a not in ("Y", "X")}
        if 0 in chosen.shape or not {"Y", "X"} <= set(lengths):
            raise BadFile(self.path, f"has shape {chosen.shape}: there is nothing to read")
        if len(others) > 1 or not set(others) <= set(_CHANNEL_AXES):
            raise BadFile(
                self.path,
                f"has axes {chosen.axes} of shape {chosen.shape}, and an image has rows, columns and channels: "
                f"save one plane per file",
            )
        self.size = (lengths["Y"], lengths["X"])
        self._planes: list[Any] = list(chosen.pages)
        if any(plane is None for plane in self._planes):
            raise BadFile(self.path, "has planes in other files, or none at all: save it as one file")
        key: Any = chosen.keyframe
        self._key = key
        if key.dtype is None or key.dtype.kind not in "buif":
            raise BadFile(self.path, f"has values of type {key.dtype}: save it with 8 or 16 bits")
        if (key.imagelength, key.imagewidth) != self.size:
            raise BadFile(self.path, f"has pages of {key.shape} for an image of {self.size}")
        self._colours = None if indices or key.photometric != _PALETTE else np.asarray(key.colormap)
        if key.compression == _APERIO_YCBCR or (key.photometric in _NOT_RGB and key.compression not in _JPEG):
            colours = _NOT_RGB.get(key.photometric, "YCbCr")
            raise BadFile(
                self.path, f"has {colours} colours, which are not read: save it as RGB (an SVS: halocline[wsi])"
            )
        self.channels = 3 if self._colours is not None else key.samplesperpixel * len(self._planes)
        if self._colours is None and self.channels != math.prod(others.values()):
            raise BadFile(
                self.path, f"has shape {chosen.shape} and lists {len(self._planes)} page: save it with a page per plane"
            )
        self.alpha = len(self._planes) == 1 and bool(key.extrasamples) and key.extrasamples[-1] in _ALPHA
        bits = key.bitspersample - (key.dtype.kind == "i")
        self.white = 0.0 if key.dtype.kind == "f" else float(2**bits - 1)
        if self._colours is not None:
            self.white = 65535.0
        self._inverted = key.photometric == _WHITE_IS_ZERO and key.dtype.kind in "bu" and not indices
        # Segments lie in rows, and the planes of separate channels one after the other.
        self._segment = (key.tilelength, key.tilewidth) if key.is_tiled else (key.rowsperstrip, key.imagewidth)
        self._segments = tuple(-(-size // step) for size, step in zip(self.size, self._segment))

    @property
    def bytes_read(self) -> int:
        return self._file.count

    def read(self, box: Box) -> NDArray:
        with naming(self.path):
            pixels = np.concatenate([self._read_plane(plane, box) for plane in self._planes])
        if self._inverted:
            pixels = ~pixels if pixels.dtype == np.bool_ else (pixels.dtype.type(self.white) - pixels)
        if self._colours is not None:
            pixels = self._colours[:, pixels[0]]
        return pixels

    def _read_plane(self, plane: Any, box: Box) -> NDArray:
        """A page's pixels in a box, channels first."""
        key = self._key
        separate = key.planarconfig == _SEPARATE and key.samplesperpixel > 1
        result = np.full((key.samplesperpixel, *shape(box)), key.nodata, key.dtype)
        for channel in range(key.samplesperpixel if separate else 1):
            into = result[channel : channel + 1] if separate else result
            for index, held in self._meeting(box, channel):
                offset, count = plane.dataoffsets[index], plane.databytecounts[index]
                if not count:
                    continue  # a segment that was never written
                inside = intersect(held, box)
                if self._is_plain():
                    pixels = self._plain(offset, held, inside)
                else:
                    data = self._file.read_at(offset, count)
                    pixels = self._decoded(data, index, plane)[slices(inside, held)]
                into[(slice(None), *slices(inside, box))] = pixels.transpose(2, 0, 1)
        return result

    def _meeting(self, box: Box, channel: int) -> Iterator[tuple[int, Box]]:
        """The segments that meet a box: their numbers and their boxes."""
        rows, columns = (range(a // step, -(-b // step)) for (a, b), step in zip(box, self._segment))
        down, across = self._segments
        height, width = self._segment
        for row in rows:
            for column in columns:
                held = (row * height, (row + 1) * height), (column * width, (column + 1) * width)
                yield (channel * down + row) * across + column, held

    def _decoded(self, data: bytes, index: int, plane: Any) -> NDArray:
        """A segment's pixels, channels last."""
        key = self._key
        options = {} if key.jpegheader is None else {"jpegheader": key.jpegheader}
        tables = plane.jpegtables if plane.jpegtables is not None else key.jpegtables
        try:
            segment = key.decode(data, index, jpegtables=tables, **options)[0]
        except (ImportError, ValueError) as error:
            if isinstance(error, ImportError) or "imagecodecs" in str(error):
                raise MissingExtra(f"{self.path} needs imagecodecs to be decoded: install halocline[images]") from None
            raise
        return segment[0]

    def _is_plain(self) -> bool:
        """Whether rows lie in the file as they are."""
        key = self._key
        return (
            not key.is_tiled
            and key.compression == _UNCOMPRESSED
            and key.predictor == 1
            and key.fillorder == 1
            and key.bitspersample == 8 * key.dtype.itemsize
            and not key.is_subsampled
        )

    def _plain(self, offset: int, held: Box, wanted: Box) -> NDArray:
        """Pixels of an uncompressed strip, channels last: a read per row, or one where whole rows are wanted."""
        key = self._key
        samples = 1 if key.planarconfig == _SEPARATE else key.samplesperpixel
        kind = np.dtype(key.dtype).newbyteorder(key.parent.byteorder)
        pixel = samples * kind.itemsize
        (top, bottom), (left, right) = wanted
        start = offset + ((top - held[0][0]) * key.imagewidth + left) * pixel
        if (left, right) == (0, key.imagewidth):
            data = self._file.read_at(start, (bottom - top) * (right - left) * pixel)
        else:
            step = key.imagewidth * pixel
            data = b"".join(
                self._file.read_at(start + row * step, (right - left) * pixel) for row in range(bottom - top)
            )
        return np.frombuffer(data, kind).reshape(bottom - top, right - left, samples)

    def check(self, thorough: bool) -> None:
        with naming(self.path):
            wanted = self._segments[0] * self._segments[1]
            wanted *= self._key.samplesperpixel if self._key.planarconfig == _SEPARATE else 1
            for plane in self._planes:
                offsets, counts = plane.dataoffsets, plane.databytecounts
                if len(offsets) < wanted or len(counts) < wanted:
                    raise BadFile(self.path, f"lists {min(len(offsets), len(counts))} of its {wanted} tiles or strips")
                end = max(offset + count for offset, count in zip(offsets, counts))
                if end > self._file.size:
                    raise BadFile(self.path, f"is cut off: it has {self._file.size} bytes of {end}")
        super().check(thorough)

    def close(self) -> None:
        self._file.close()


class CountingFile(io.RawIOBase):
    """A file that counts the bytes read from it. Its position is its own, not the operating system's, so that worker
    processes that were started with the file open do not move each other's."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.name = path
        self.size = os.stat(path).st_size
        self.count = 0
        """Bytes read so far."""
        self._descriptor = os.open(path, os.O_RDONLY)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = start + offset
        return self._position

    def read_at(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset` on; fewer is an error."""
        data = b""
        while len(data) < count:
            more = os.pread(self._descriptor, count - len(data), offset + len(data))
            if not more:
                raise EOFError(f"the file ends {count - len(data)} bytes early")
            data = data + more if data else more
        self.count += len(data)
        return data

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        view = memoryview(buffer).cast("B")
        count = min(len(view), max(0, self.size - self._position))
        view[:count] = self.read_at(self._position, count)
        self._position += count
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
