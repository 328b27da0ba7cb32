"""Joining pixels that lie far apart: along one spatial dim the result is made of segments of other tiles.

Serves what a single box cannot describe: wrapping around the image, rolling, and concatenation of images. Each segment
moves by itself, so that no rank fetches what lies between. Knows routes and specs, nothing of operators.

    segments of a circular pad by 2     |6 7|0 1 2 3 4 5 6 7|0 1|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from halocline.tiling.boxes import Box, intersect_interval, slices
from halocline.tiling.plain import for_tiles
from halocline.tiling.route import index, move
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import apart, in_format_of
from halocline.tiling.tensor import TileTensor


@dataclass(frozen=True)
class Segment:
    """Pixels [start, start + length) of one of the tensors become pixels [at, at + length) of the result."""

    piece: int
    start: int
    at: int
    length: int


@lru_cache(maxsize=1024)
def _needs(out: TileSpec, axis: int, segment: Segment) -> tuple[Box, ...]:
    """By rank, what it needs of the segment, in the coordinates of the segment's tensor."""
    boxes = []
    for box in out.own:
        start, stop = intersect_interval(box[axis], (segment.at, segment.at + segment.length))
        shift = segment.start - segment.at
        boxes.append((*box[:axis], (start + shift, stop + shift), *box[axis + 1 :]))
    return tuple(boxes)


def splice(pieces: Sequence[Tensor], segments: Sequence[Segment], axis: int, out: TileSpec) -> TileTensor:
    """The tile of `out` whose spatial dim number `axis` is made of `segments`, in the order of their place.

    The pieces are tiles cut as `out` is in all other dims, or plain whole tensors.
    """
    parts = []
    for segment in segments:
        piece = pieces[segment.piece]
        need = _needs(out, axis, segment)
        if isinstance(piece, TileTensor):
            spec = piece.spec
            parts.append(move(piece.local, spec.own, need, spec.exchanger, spec.dims, spec.held))
        else:
            origin = ((0, 0),) * len(out.dims)
            parts.append(for_tiles(piece, out.exchanger)[index(slices(need[out.exchanger.rank], origin), out.dims)])
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, out.dims[axis])
    # A part may be empty, or one pixel wide: the memory format is that of the pieces.
    given = [p.local if isinstance(p, TileTensor) else p for p in pieces]
    return TileTensor.wrap(apart(in_format_of(joined, *given), *given), out)
