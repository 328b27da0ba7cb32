"""Images of bytes at another size, by box: bilinear, and bit for bit what Pillow's `resize` (so torchvision's) makes of
the whole image, since all sums are of integers. Knows arrays and boxes only.

Pillow 13 may shrink columns first where the image or its new size is not square, which rounds some pixels to the next
of 255 levels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halocline.tiling.boxes import Interval

BITS = 22
"""Of the fraction of a weight: with 8 bits of a pixel they fit into 32."""


class Blend(NamedTuple):
    """For one dim: which pixels of the source make an interval of outputs, and how much each of them counts."""

    seen: Interval
    """All of them together."""
    places: NDArray[np.intp]
    """(outputs, pixels), from the first pixel seen."""
    weights: NDArray[np.int32]
    """(outputs, pixels): fractions with `BITS` bits."""


@lru_cache(maxsize=64)
def blend(size: int, out_size: int, interval: Interval) -> Blend:
    """What an interval of `out_size` outputs needs of `size` pixels. An output is the mean of the pixels around its
    centre, weighted by a triangle that reaches to the next pixels, or, where the image shrinks, to the next outputs.

        size 4, out_size 8            .   .   .   .        outputs 3 and 4 lie between pixels 1 and 2:
                                     . . . . . . . .       weights 3/4, 1/4 and 1/4, 3/4
    """
    scale = size / out_size
    reach = max(scale, 1.0)
    rows = []
    for output in range(*interval):
        centre = (output + 0.5) * scale
        near = range(max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), size))
        shares = {pixel: 1 - abs((pixel - centre + 0.5) * (1 / reach)) for pixel in near}
        shares = {pixel: share for pixel, share in shares.items() if share > 0}
        total = 0.0
        for share in shares.values():  # in Pillow's order: from Python 3.12 on, sum() has other last bits
            total += share
        rows.append((min(shares), [int(0.5 + share / total * (1 << BITS)) for share in shares.values()]))
    start, stop = min(first for first, _ in rows), max(first + len(weights) for first, weights in rows)
    most = max(len(weights) for _, weights in rows)
    places = np.zeros((len(rows), most), np.intp)
    table = np.zeros((len(rows), most), np.int32)
    for number, (first, weights) in enumerate(rows):
        places[number, : len(weights)] = np.arange(first - start, first - start + len(weights))
        table[number, : len(weights)] = weights
    return Blend((start, stop), places, table)


def resized(pixels: NDArray[np.uint8], rows: Blend, columns: Blend) -> NDArray[np.uint8]:
    """The box of outputs whose pixels seen are `pixels`, channels first."""
    wide = _summed(pixels, columns)
    return _summed(wide.swapaxes(-1, -2), rows).swapaxes(-1, -2)


def _summed(pixels: NDArray[np.uint8], line: Blend) -> NDArray[np.uint8]:
    """Sums along the last dim, rounded to bytes."""
    total = np.full((*pixels.shape[:-1], len(line.places)), 1 << (BITS - 1), np.int32)
    for places, weights in zip(line.places.T, line.weights.T):
        total += pixels[..., places] * weights
    return np.clip(total >> BITS, 0, 255).astype(np.uint8)
