"""Which pixels of a source image make the image that is trained on, and how they are turned. Boxes only, no colours.

source, 5 x 6          view: top = 1, left = 2, size (3, 3), transposed, columns flipped
. . . . . .
. . a b c .            a d g              g d a
. . d e f .    ->      b e h      ->      h e b
. . g h i .            c f i              i f c
. . . . . .
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import NDArray

from halocline.tiling.boxes import Box, Interval


@dataclass(frozen=True)
class View:
    """A rectangle of the source, transposed, then with rows and columns flipped (any turn by 90 degrees is one)."""

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
