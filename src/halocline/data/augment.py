"""Random changes to training images: flips, crops, turns and colours. What is drawn depends on (seed, epoch, sample)
alone, so that all tiles of one image agree, and each can be applied to a box without seeing the rest.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halocline.data import chance
from halocline.tiling.boxes import Box, Interval

_LUMA = (0.299, 0.587, 0.114)
"""How bright red, green and blue are to the eye (ITU-R BT.601)."""
_GREY = 0.5
"""What contrast is taken about. A fixed value: the mean of an image would need the whole image."""

_MIRROR, _TOP, _LEFT, _UPEND, _TURN, _BRIGHTNESS, _CONTRAST, _SATURATION = chance.purposes("augment", 8)


@dataclass(frozen=True)
class View:
    """Which pixels of a source image make the image that is trained on: a rectangle, transposed, then with rows and
    columns flipped (any turn by 90 degrees is one).

    source, 5 x 6          top = 1, left = 2, size (3, 3), transposed, columns flipped
    . . . . . .
    . . a b c .            a d g              g d a
    . . d e f .    ->      b e h      ->      h e b
    . . g h i .            c f i              i f c
    . . . . . .
    """

    size: tuple[int, int]
    """Of what is seen."""
    top: int = 0
    left: int = 0
    """Where the rectangle starts in the source; below 0 where the source was padded."""
    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False

    def source(self, box: Box) -> Box:
        """The box of the source that `box` of the image shows; it may reach outside a padded source."""
        rows = _flipped(box[0], self.size[0]) if self.flip_rows else box[0]
        columns = _flipped(box[1], self.size[1]) if self.flip_columns else box[1]
        if self.transpose:
            rows, columns = columns, rows
        return (rows[0] + self.top, rows[1] + self.top), (columns[0] + self.left, columns[1] + self.left)

    def turn(self, pixels: NDArray) -> NDArray:
        """What was read of the source, (..., h, w), as it is seen: memory of its own, which may be the array's."""
        given = pixels
        if self.transpose:
            pixels = pixels.swapaxes(-1, -2)
        if self.flip_rows:
            pixels = pixels[..., ::-1, :]
        if self.flip_columns:
            pixels = pixels[..., ::-1]
        if pixels is given and pixels.flags.owndata and pixels.flags.writeable and pixels.flags.c_contiguous:
            return pixels
        return pixels.copy()  # laid out afresh: torch takes no array that runs backwards


def _flipped(interval: Interval, size: int) -> Interval:
    return size - interval[1], size - interval[0]


def centred(size: tuple[int, int], source: tuple[int, int]) -> View:
    """The middle of a source."""
    return View(size, (source[0] - size[0]) // 2, (source[1] - size[1]) // 2)


@dataclass(frozen=True)
class Augment:
    """What may be changed."""

    flip: bool = False
    """Left and right, for every second image."""
    upend: bool = False
    """Top and bottom, for every second image."""
    rotate: bool = False
    """By 0, 90, 180 or 270 degrees; images that are not square by 0 or 180."""
    crop: bool = False
    """Take the image from anywhere in a larger file, not from its middle."""
    pad: int = 0
    """Black pixels around a file before it is cropped (a mask's are not counted)."""
    brightness: float = 0.0
    """Multiply by a factor in [1 - x, 1 + x]."""
    contrast: float = 0.0
    """Likewise, about mid-grey."""
    saturation: float = 0.0
    """Likewise, about each pixel's own grey."""

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)} is not in [0, 1]: use e.g. {name}=0.2")
        if self.pad < 0:
            raise ValueError(f"pad = {self.pad} is below 0: use 0 for none")

    def view(self, size: tuple[int, int], source: tuple[int, int], draw: tuple[int, int, int]) -> View:
        """Where the image of a draw (seed, epoch, sample) lies in its source."""
        view = centred(size, source)
        if self.crop or self.pad:
            top, left = (
                chance.below(outer + 2 * self.pad - inner + 1, *draw, purpose) - self.pad
                for outer, inner, purpose in zip(source, size, (_TOP, _LEFT))
            )
            view = View(size, top, left)
        flip_rows = self.upend and chance.below(2, *draw, _UPEND) == 1
        flip_columns = self.flip and chance.below(2, *draw, _MIRROR) == 1
        transpose = False
        if self.rotate:
            turns = chance.below(4, *draw, _TURN) if size[0] == size[1] else 2 * chance.below(2, *draw, _TURN)
            transpose = turns % 2 == 1  # a quarter turn is a transposition and a flip, a half turn is two flips
            flip_rows ^= turns in (1, 2)
            flip_columns ^= turns in (2, 3)
        return dataclasses.replace(view, transpose=transpose, flip_rows=flip_rows, flip_columns=flip_columns)

    def coloured(self, pixels: NDArray[np.float32], draw: tuple[int, int, int]) -> NDArray[np.float32]:
        """Values in [0, 1], channels first, changed pixel by pixel as a draw (seed, epoch, sample) says; a factor of
        1 changes nothing. Saturation is for three channels; others have none to change."""
        brightness, contrast, saturation = (
            1 + strength * (2 * chance.uniform(*draw, purpose) - 1)
            for strength, purpose in (
                (self.brightness, _BRIGHTNESS),
                (self.contrast, _CONTRAST),
                (self.saturation, _SATURATION),
            )
        )
        if brightness != 1:
            pixels = np.clip(pixels * np.float32(brightness), 0, 1)
        if contrast != 1:
            pixels = np.clip((pixels - np.float32(_GREY)) * np.float32(contrast) + np.float32(_GREY), 0, 1)
        if saturation != 1 and len(pixels) == 3:
            red, green, blue = (np.float32(weight) * plane for weight, plane in zip(_LUMA, pixels))
            grey = red + green + blue
            pixels = np.clip((pixels - grey) * np.float32(saturation) + grey, 0, 1)
        return pixels


def parse_augment(text: str) -> Augment | None:
    """`flip,rotate,crop,pad=4,colour=0.2` as an `Augment`; `none` or nothing as None. `colour` stands for brightness,
    contrast and saturation."""
    fields = {field.name: field.type for field in dataclasses.fields(Augment)}
    chosen: dict[str, float | int | bool] = {}
    for word in text.replace(" ", "").split(","):
        name, _, value = word.partition("=")
        if name in ("", "none"):
            continue
        if name != "colour" and name not in fields:
            near = difflib.get_close_matches(name, (*fields, "colour"), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"use some of {', '.join((*fields, 'colour'))}"
            raise ValueError(f"{name!r} is not an augmentation: {hint}")
        if name != "colour" and fields[name] == "bool":
            if value:
                raise ValueError(f"{word}: {name} takes no value: write {name}")
            chosen[name] = True
            continue
        try:
            number = int(value) if name == "pad" else float(value or 0.2)
        except ValueError:
            example = "pad=4" if name == "pad" else f"{name}=0.2"
            raise ValueError(f"{word}: {value!r} is not a number: write {example}") from None
        for each in ("brightness", "contrast", "saturation") if name == "colour" else (name,):
            chosen[each] = number
    return Augment(**chosen) if chosen else None  # type: ignore[arg-type]
