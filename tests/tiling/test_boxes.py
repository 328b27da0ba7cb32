"""The geometry against brute force: every window written out pixel by pixel."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline.tiling.boxes import (
    Reach,
    Table,
    TransposedWindow,
    Window,
    balanced_cuts,
    ceil_hi,
    check_cuts,
    clip,
    contains,
    grow,
    intersect,
    is_empty,
    out_cuts,
)
from halocline.tiling.geometry import border

windows = st.builds(
    Window,
    kernel=st.integers(1, 6),
    stride=st.integers(1, 4),
    lo=st.integers(0, 4),
    hi=st.integers(0, 4),
    dilation=st.integers(1, 3),
)
transposed = st.builds(
    TransposedWindow,
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
    output_padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
)


def reads(reach: Reach, size: int) -> list[list[int]]:
    """Per output pixel the input pixels it reads, padding included, from the definition."""
    out = range(reach.out_size(size))
    if isinstance(reach, Window):
        return [[i * reach.stride - reach.lo + reach.dilation * t for t in range(reach.kernel)] for i in out]
    assert isinstance(reach, TransposedWindow)
    taps = range(reach.kernel)
    return [
        [i for i in range(-50, size + 50) if j in {i * reach.stride - reach.padding + reach.dilation * t for t in taps}]
        for j in out
    ]


@settings(max_examples=300, deadline=None)
@given(st.one_of(windows, transposed), st.integers(1, 20), st.data())
def test_needs_and_gives_agree_with_brute_force(reach: Reach, size: int, data: st.DataObject) -> None:
    table = reads(reach, size)
    if not table:
        return
    a = data.draw(st.integers(0, len(table) - 1))
    b = data.draw(st.integers(a + 1, len(table)))
    start, stop = reach.needs((a, b))
    used = [i for pixels in table[a:b] for i in pixels]
    assert all(start <= i < stop for i in used)
    if isinstance(reach, Window):
        assert start == min(used) and stop == max(used) + 1

    held_start = data.draw(st.integers(0, size - 1))
    held = held_start, data.draw(st.integers(held_start + 1, size))
    first, last = reach.gives(held, size)
    for j, pixels in enumerate(table):
        computable = all(held[0] <= i < held[1] for i in pixels if 0 <= i < size)
        if first <= j < last:
            assert computable
        elif isinstance(reach, Window) and reach.dilation == 1 and pixels[-1] >= held[0] and pixels[0] < held[1]:
            assert not computable, "gives is not the largest interval"


@settings(max_examples=200, deadline=None)
@given(st.one_of(windows, transposed), st.integers(2, 30), st.data())
def test_output_cuts_rise_and_cover(reach: Reach, size: int, data: st.DataObject) -> None:
    inner = data.draw(st.sets(st.integers(1, size - 1), max_size=4))
    cuts = (0, *sorted(inner), size)
    result = out_cuts(reach, cuts)
    assert len(result) == len(cuts) and result[0] == 0 and result[-1] == reach.out_size(size)
    assert all(a <= b for a, b in pairwise(result))


def test_layers_of_a_residual_block_are_cut_alike() -> None:
    """Kernels that are added to each other must not need a second exchange to meet."""
    cuts = (0, 5, 12, 17)
    for stride in (1, 2, 3):
        alike = {out_cuts(Window(k, stride, (k - 1) // 2, (k - 1) // 2), cuts) for k in (1, 3, 5, 7)}
        assert len(alike) == 1
    assert out_cuts(Window(2, 2), (0, 6, 12)) == out_cuts(Window(1, 2), (0, 6, 12)) == (0, 3, 6)
    for kernel, padding, extra in ((2, 0, 0), (4, 1, 0), (3, 1, 1)):
        assert out_cuts(TransposedWindow(kernel, 2, padding, extra), (0, 3, 5, 9)) == (0, 6, 10, 18)


def test_a_table_follows_its_centres() -> None:
    # Bilinear upsampling by 2: output j lies at (j + 1/2) / 2 - 1/2 and reads the two pixels around it.
    centres = tuple((j + 0.5) / 2 - 0.5 for j in range(8))
    starts = tuple(max(0, int(c // 1)) for c in centres)
    table = Table(starts, tuple(min(4, int(c // 1) + 2) for c in centres), centres)
    assert out_cuts(table, (0, 1, 4)) == (0, 2, 8)
    assert table.needs((2, 4)) == (0, 3)
    assert table.gives((0, 2), 4) == (0, 3) and table.gives((1, 4), 4) == (3, 8)


@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 5), st.data())
def test_ceil_mode_has_the_size_of_torch(size: int, kernel: int, stride: int, data: st.DataObject) -> None:
    import torch

    padding = data.draw(st.integers(0, kernel // 2))
    if size + 2 * padding < kernel:
        return
    window = Window(kernel, stride, padding, ceil_hi(size, kernel, stride, padding))
    expected = torch.nn.functional.max_pool1d(torch.zeros(1, 1, size), kernel, stride, padding, ceil_mode=True)
    assert window.out_size(size) == expected.shape[-1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=3))
def test_the_border_covers_each_padding_pixel_once(parts: list[tuple[int, int, int]]) -> None:
    import torch

    inside = tuple((0, n) for _, n, _ in parts)
    padded = tuple((-lo, n + hi) for lo, n, hi in parts)
    seen = torch.zeros([b - a for a, b in padded])
    for slab in border(padded, inside):
        seen[slab] += 1
    seen[tuple(slice(lo, lo + n) for lo, n, _ in parts)] += 1
    assert (seen == 1).all()


def test_boxes() -> None:
    assert balanced_cuts(10, 3) == (0, 3, 6, 10)
    assert intersect(((0, 4), (2, 5)), ((3, 9), (0, 3))) == ((3, 4), (2, 3))
    assert is_empty(intersect(((0, 2),), ((3, 5),))) and is_empty(clip(((-5, -2),), (4,)))
    assert contains(((0, 5),), ((1, 5),)) and not contains(((0, 5),), ((1, 6),)) and contains(((0, 1),), ((7, 7),))
    assert grow(((2, 4), (0, 3)), ((1, 9), (1, 1)), (6, 6)) == ((1, 6), (0, 4))
    assert grow(((2, 2),), ((1, 1),), (6,)) == ((2, 2),)


def test_cuts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot cut 2 pixels into 3 tiles"):
        balanced_cuts(2, 3)
    for bad in ((0, 5), (0, 4, 4, 8), (1, 8), (8,)):
        with pytest.raises(ValueError, match="must rise from 0"):
            check_cuts(bad, 8)


def test_boxes_need_no_torch() -> None:
    code = "import sys, halocline.tiling.boxes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
