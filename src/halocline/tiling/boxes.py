"""Intervals, boxes and windows in whole-image coordinates: which input pixels an output pixel needs.

Pure integers: knows nothing of torch, ranks or messages.

An `Interval` is half-open, a `Box` has one interval per spatial dim, and `Cuts` are the n + 1 boundaries of n
intervals that lie side by side. A `Reach` says, for one dim, how output pixels depend on input pixels; convolution,
pooling, transposed convolution, interpolation and slicing differ only in their reach:

    input     0 1 2 3 | 4 5 6 7          cut at 4
    Window(kernel=3, stride=2, lo=1)     output 1 needs inputs [1, 4); its centre, 2, lies left of the cut
    output    0   1   | 2   3            so the output is cut at 2
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import ClassVar, Protocol

Interval = tuple[int, int]
Box = tuple[Interval, ...]
Cuts = tuple[int, ...]


def balanced_cuts(size: int, parts: int) -> Cuts:
    """The boundaries of `parts` intervals of (nearly) equal length that cover [0, size)."""
    if not 1 <= parts <= size:
        raise ValueError(f"cannot cut {size} pixels into {parts} tiles; use between 1 and {size} tiles in this dim")
    return tuple(size * i // parts for i in range(parts + 1))


def check_cuts(cuts: Sequence[int], size: int) -> Cuts:
    """`cuts` as a tuple, after checking that they rise strictly from 0 to `size`."""
    result = tuple(int(c) for c in cuts)
    if len(result) < 2 or result[0] != 0 or result[-1] != size or any(a >= b for a, b in pairwise(result)):
        raise ValueError(f"cuts {result} must rise from 0 to the image's size {size}, e.g. (0, {size // 2}, {size})")
    return result


def intersect_interval(a: Interval, b: Interval) -> Interval:
    """The common part; an empty one is (x, x) with x inside `b` or at its edge."""
    start = min(max(a[0], b[0]), b[1])
    return start, max(start, min(a[1], b[1]))


def intersect(a: Box, b: Box) -> Box:
    """The common part of two boxes, possibly empty."""
    return tuple(intersect_interval(x, y) for x, y in zip(a, b))


def clip(box: Box, size: Sequence[int]) -> Box:
    """The part of `box` that lies inside an image of `size`."""
    return tuple(intersect_interval(i, (0, n)) for i, n in zip(box, size))


def is_empty(box: Box) -> bool:
    return any(stop <= start for start, stop in box)


def contains(outer: Box, inner: Box) -> bool:
    """Whether every pixel of `inner` is in `outer` (an empty box is in every box)."""
    return is_empty(inner) or all(o[0] <= i[0] and i[1] <= o[1] for o, i in zip(outer, inner))


def shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def slices(box: Box, origin: Box) -> tuple[slice, ...]:
    """Where the pixels of `box` lie in an array whose first pixel is the first of `origin`."""
    return tuple(slice(start - o[0], stop - o[0]) for (start, stop), o in zip(box, origin))


def grow(box: Box, margin: Sequence[Interval], size: Sequence[int]) -> Box:
    """`box` with (before, after) more pixels per dim, clipped to the image; an empty box stays empty."""
    if is_empty(box):
        return box
    return clip(tuple((a - lo, b + hi) for (a, b), (lo, hi) in zip(box, margin)), size)


class Reach(Protocol):
    """How output pixels depend on input pixels in one dim. Implementations are hashable and never change."""

    pads: ClassVar[bool]
    """Whether pixels needed outside the image are padding (True) or just absent (False)."""

    def out_size(self, size: int) -> int:
        """How many output pixels an input of `size` pixels gives."""

    def needs(self, out: Interval) -> Interval:
        """The input pixels that a non-empty interval of outputs needs; may reach outside the image."""

    def gives(self, held: Interval, size: int) -> Interval:
        """The largest interval of outputs computable from the input pixels `held`, of an image of `size`."""

    def out_cut(self, cut: int) -> int:
        """The first output whose centre lies right of the edge between input pixels cut - 1 and cut."""


def out_cuts(reach: Reach, cuts: Cuts) -> Cuts:
    """Where the output is cut so that each output pixel lives where the centre of its window lives."""
    size = reach.out_size(cuts[-1])
    inner = (min(max(reach.out_cut(c), 0), size) for c in cuts[1:-1])
    return (0, *accumulate(inner, max), size)


def _given(start: int, stop: int, out_size: int) -> Interval:
    start = min(max(start, 0), out_size)
    return start, max(start, min(stop, out_size))


@dataclass(frozen=True)
class Window:
    """A sliding window: output i reads inputs i * stride - lo + dilation * t, for t in [0, kernel)."""

    kernel: int = 1
    stride: int = 1
    lo: int = 0
    """Padding before the first pixel."""
    hi: int = 0
    """Padding after the last pixel; `ceil_hi` gives the one that rounds the output size up."""
    dilation: int = 1
    pads: ClassVar[bool] = True

    @property
    def span(self) -> int:
        """Pixels from the first to the last one read."""
        return self.dilation * (self.kernel - 1) + 1

    def out_size(self, size: int) -> int:
        return max(0, (size + self.lo + self.hi - self.span) // self.stride + 1)

    def needs(self, out: Interval) -> Interval:
        return out[0] * self.stride - self.lo, (out[1] - 1) * self.stride - self.lo + self.span

    def gives(self, held: Interval, size: int) -> Interval:
        out_size = self.out_size(size)
        start = 0 if held[0] <= 0 else -(-(held[0] + self.lo) // self.stride)
        stop = out_size if held[1] >= size else (held[1] + self.lo - self.span) // self.stride + 1
        return _given(start, stop, out_size)

    def out_cut(self, cut: int) -> int:
        # Centre of output i, doubled to stay in integers: 2 i stride - 2 lo + span - 1; it must exceed 2 cut - 1.
        return (2 * cut - 1 + 2 * self.lo - self.span + 1) // (2 * self.stride) + 1


def ceil_hi(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """The padding after the last pixel that makes a pooling window's output size the one of `ceil_mode=True`."""
    span = dilation * (kernel - 1) + 1
    out = -(-(size + 2 * padding - span) // stride) + 1
    if (out - 1) * stride >= size + padding:  # the last window would start in the padding after the image
        out -= 1
    return (out - 1) * stride + span - size - padding


@dataclass(frozen=True)
class TransposedWindow:
    """The window of a transposed convolution: input i writes outputs i * stride - padding + dilation * t."""

    kernel: int
    stride: int = 1
    padding: int = 0
    output_padding: int = 0
    dilation: int = 1
    pads: ClassVar[bool] = False

    @property
    def span(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    @property
    def apart(self) -> int:
        """The span, or the stride where that is longer: an output that no input writes needs the input before it."""
        return max(self.span, self.stride)

    def out_size(self, size: int) -> int:
        return max(0, (size - 1) * self.stride - 2 * self.padding + self.span + self.output_padding)

    def needs(self, out: Interval) -> Interval:
        start = -(-(out[0] + self.padding - self.apart + 1) // self.stride)
        return start, max(start, (out[1] - 1 + self.padding) // self.stride + 1)

    def gives(self, held: Interval, size: int) -> Interval:
        out_size = self.out_size(size)
        start = 0 if held[0] <= 0 else (held[0] - 1) * self.stride + self.apart - self.padding
        stop = out_size if held[1] >= size else held[1] * self.stride - self.padding
        return _given(start, stop, out_size)

    def out_cut(self, cut: int) -> int:
        # Output j lies at input position (j + padding - (span - 1) / 2) / stride; it must exceed cut - 1/2.
        return ((2 * cut - 1) * self.stride - 2 * self.padding + self.span - 1) // 2 + 1


@dataclass(frozen=True, eq=False)
class Table:
    """Any other reach, written out: output j reads inputs [starts[j], stops[j]), both rising with j.

    Compared by identity, so that a long table costs nothing to look up: build it once in a cached function.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    centres: tuple[float, ...] = field(default=())
    """Where each output lies in input coordinates (pixel i is at i); the middle of what it reads unless given."""
    pads: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.centres:
            centres = tuple((a + b - 1) / 2 for a, b in zip(self.starts, self.stops))
            object.__setattr__(self, "centres", centres)

    def out_size(self, size: int) -> int:
        return len(self.starts)

    def needs(self, out: Interval) -> Interval:
        return self.starts[out[0]], self.stops[out[1] - 1]

    def gives(self, held: Interval, size: int) -> Interval:
        start = 0 if held[0] <= 0 else bisect_left(self.starts, held[0])
        stop = len(self.starts) if held[1] >= size else bisect_right(self.stops, held[1])
        return _given(start, stop, len(self.starts))

    def out_cut(self, cut: int) -> int:
        return bisect_right(self.centres, cut - 0.5)
