"""Max, average and LP pooling in 1, 2 and 3 dims, by sliding windows or adaptive to any size.

At the image's border max pooling pads with -inf, and average pooling divides by what one device divides by. Adaptive,
output i reads pixels [floor(i n / o), ceil((i + 1) n / o)): an average to one pixel leaves the tiling by a sum over
ranks; everything else stays tiles, some of them perhaps empty. pool_indices.py says which pixels were the largest.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.boxes import Box, Window, ceil_hi
from halocline.tiling.constant import constant
from halocline.tiling.geometry import Geometry
from halocline.tiling.lanes import per_sample
from halocline.tiling.local_operator import Indexed, Recomputed
from halocline.tiling.resample import Taps, largest, resample
from halocline.tiling.rules.convolution import hashable, tuples
from halocline.tiling.rules.gathered import cut_again
from halocline.tiling.rules.reduction import reduce
from halocline.tiling.statistics import LOW_PRECISION
from halocline.tiling.strides import in_order_of
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.window import windowed

Ints = tuple[int, ...]
_MAX, _AVERAGE, _LP, _ADAPTIVE_MAX, _ADAPTIVE_AVERAGE = (
    [getattr(F, f"{name}_pool{dims}d") for dims in (1, 2, 3)]
    for name in ("max", "avg", "lp", "adaptive_max", "adaptive_avg")
)
"""By number of dims less one."""


def windows_asked(
    input: TileTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[tuple[Window, ...], Ints]:
    """The windows of a pooling, and its padding per dim, from its arguments; torch has other functions for indices."""
    return _windows(input.spec.size, *map(hashable, (kernel_size, stride, padding, dilation)), ceil_mode)


@lru_cache(maxsize=1024)
def _windows(
    size: Ints, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[tuple[Window, ...], Ints]:
    dims = len(size)
    kernels, dilations, pads = tuples(kernel, dims), tuples(dilation, dims), tuples(padding, dims)
    strides = tuples(stride, dims) if stride is not None and stride != () else kernels
    windows = []
    for n, k, s, p, d in zip(size, kernels, strides, pads, dilations):
        if min(k, s, d) < 1 or p < 0:
            raise ValueError(
                f"pooling by kernel_size={k}, stride={s}, padding={p}, dilation={d} is none; use 1 or more"
            )
        if p > k // 2:
            raise ValueError(f"pooling pads by at most half its kernel, but padding={p} and kernel_size={k}")
        hi = ceil_hi(n, k, s, p, d) if ceil_mode else p
        window = Window(k, s, p, hi, d)
        if window.out_size(n) < 1:
            raise ValueError(
                f"a pooling window of {window.span} pixels is larger than the {n} (padded) pixels it is given"
            )
        windows.append(window)
    return tuple(windows), pads


def numbers_of(windows: tuple[Window, ...]) -> tuple[Ints, Ints, Ints]:
    """Kernel, stride and dilation, per dim."""
    return tuple(w.kernel for w in windows), tuple(w.stride for w in windows), tuple(w.dilation for w in windows)


@lru_cache(maxsize=1024)
def _max_operator(windows: tuple[Window, ...]) -> Recomputed:
    kernel, stride, dilation = numbers_of(windows)

    def pool(padded: Tensor, where: Geometry) -> Tensor:
        return _MAX[len(kernel) - 1](padded, kernel, stride, where.padding, dilation)

    if len(kernel) == 1:
        return Recomputed(pool)
    aten = torch.ops.aten
    choose, give = (
        (aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward),
        (aten.max_pool3d_with_indices, aten.max_pool3d_with_indices_backward),
    )[len(kernel) - 2]
    return Indexed(
        pool,
        lambda padded, where: choose(padded, kernel, stride, where.padding, dilation, False),
        lambda grad, like, numbers, where: give(grad, like, kernel, stride, where.padding, dilation, False, numbers),
    )


def lowest(dtype: torch.dtype) -> float:
    """What max pooling pads with."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _counts(window: Window, out: tuple[int, int], size: int, padding: int, include_pad: bool) -> tuple[int, ...]:
    """Per output pixel, the pixels that its window counts in one dim; `ceil_mode`'s extra padding never counts."""
    first, last = (-padding, size + padding) if include_pad else (0, size)
    starts = (i * window.stride - window.lo for i in range(*out))
    return tuple(min(start + window.kernel, last) - max(start, first) for start in starts)


@lru_cache(maxsize=1024)
def _average_operator(
    windows: tuple[Window, ...], size: Ints, padding: Ints, include_pad: bool, divisor: int | None
) -> Recomputed:
    dims = len(windows)
    kernel, stride, _ = numbers_of(windows)
    volume = prod(kernel)

    @constant
    def corrections(out: Box, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
        """Per dim, kernel / counted pixels, shaped to broadcast; nothing for dims where it is 1 throughout."""
        result = []
        for d, (window, interval) in enumerate(zip(windows, out)):
            counts = _counts(window, interval, size[d], padding[d], include_pad)
            if any(c != window.kernel for c in counts):
                factors = torch.tensor([window.kernel / c for c in counts], dtype=dtype, device=device)
                result.append(factors.view(-1, *(1,) * (dims - 1 - d)))
        return tuple(result)

    def average(padded: Tensor, where: Geometry) -> Tensor:
        out = _AVERAGE[dims - 1](padded, kernel, stride, where.padding)
        if divisor is not None:
            return out * (volume / divisor)
        for factor in corrections(where.out_box, out.dtype, out.device):
            out = out * factor
        return out

    return Recomputed(average)


def _average(
    input: TileTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TileTensor:
    windows, pads = windows_asked(input, kernel_size, stride, padding, 1, ceil_mode)
    operator = _average_operator(windows, input.spec.size, pads, count_include_pad, hashable(divisor_override))
    return windowed(input, windows, operator)


# ------------------------------------------------------------------------------------------------------------ adaptive


def bins(sizes: Ints, outs: Ints) -> tuple[Taps, ...]:
    """By dim, the pixels of each output."""
    return tuple(map(_bins, sizes, outs))


@lru_cache(maxsize=1024)
def _bins(size: int, out: int) -> Taps:
    starts = [i * size // out for i in range(out)]
    counts = [-(-(i + 1) * size // out) - start for i, start in enumerate(starts)]
    return Taps(size, tuple(starts), tuple((1.0 / n,) * n for n in counts))


@lru_cache(maxsize=1024)
def _average_of_taps(taps: tuple[Taps, ...], dims: Ints) -> Recomputed:
    def pool(padded: Tensor, where: Geometry) -> Tensor:
        wide = padded.float() if padded.dtype in LOW_PRECISION else padded
        for t, dim, out, given in zip(taps, dims, where.out_box, where.in_box):
            wide = resample(wide, dim, t, out, given)
        return in_order_of(wide.to(padded.dtype), padded, _ADAPTIVE_AVERAGE[len(dims) - 1], 2)

    return Recomputed(pool)


@lru_cache(maxsize=1024)
def _largest_of_taps(taps: tuple[Taps, ...], dims: Ints) -> Recomputed:
    def pool(padded: Tensor, where: Geometry) -> Tensor:
        wide = padded
        # The last dim first: of equal pixels the first in reading order is then the one found, as on one device.
        for t, dim, out, given in reversed(list(zip(taps, dims, where.out_box, where.in_box))):
            wide = largest(wide, dim, t, out, given)
        return in_order_of(wide, padded, _ADAPTIVE_MAX[len(dims) - 1], 2)

    return Recomputed(pool)


def sizes_asked(function: Any, input: Tensor, output_size: Any, dims: int) -> Ints:
    wanted = tuples(hashable(output_size), dims)
    if any(n is not None and n < 0 for n in wanted):
        raise ValueError(f"output_size={wanted} must not be negative")
    if 0 in wanted:
        raise untiled(function, (input, output_size), why="a result without pixels has no rule")
    return tuple(n if w is None else w for w, n in zip(wanted, input.shape[-dims:]))


def adaptive_average(input: TileTensor, sizes: Ints) -> TileTensor:
    kernel = len(sizes) < 3 or input.device.type != "cpu" or input.dtype not in LOW_PRECISION  # or there is none
    if kernel and (out := _by_windows(input, sizes, _AVERAGE, _ADAPTIVE_AVERAGE)) is not None:
        return out
    taps = bins(input.spec.size, sizes)
    return windowed(input, tuple(t.reach for t in taps), _average_of_taps(taps, input.spec.dims), own_padding=False)


def _by_windows(input: TileTensor, sizes: Ints, pools: Any, adaptive: Any) -> TileTensor | None:
    """The same by sliding windows, where the sizes divide the image's."""
    if any(n % o for n, o in zip(input.spec.size, sizes)):
        return None
    out = pools[len(sizes) - 1](input, tuple(n // o for n, o in zip(input.spec.size, sizes)))
    return TileTensor.wrap(in_order_of(out.local, input.local, adaptive[len(sizes) - 1], 2), out.spec)


# --------------------------------------------------------------------------------------------------------------- rules


def _register(dims: int) -> None:
    """Register the poolings of images of so many dims."""
    place = dims - 1

    @rule(_MAX[place], getattr(torch, f"max_pool{dims}d"))
    @per_sample(_MAX[place], dims)
    def max_pool(input: TileTensor, *asked: Any, **named: Any) -> TileTensor:
        windows, _ = windows_asked(input, *asked, **named)
        return windowed(input, windows, _max_operator(windows), fill=lowest(input.dtype))

    @rule(_AVERAGE[place])
    @per_sample(_AVERAGE[place], dims)
    def avg_pool(input: TileTensor, *asked: Any) -> TileTensor:
        if not input.dtype.is_floating_point:  # which torch divides and rounds in its own way
            return cut_again(_AVERAGE[place](input.full(), *asked), input.spec)
        return _average(input, *asked)

    @rule(_LP[place])
    @per_sample(_LP[place], dims)
    def lp_pool(
        input: TileTensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> TileTensor:
        out = _average(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)  # type: ignore[arg-type]
        powers = torch.sign(out) * F.relu(torch.abs(out))
        return (powers * prod(tuples(hashable(kernel_size), dims))).pow(1.0 / norm_type)  # type: ignore[return-value]

    @rule(_ADAPTIVE_MAX[place])
    @per_sample(_ADAPTIVE_MAX[place], dims)
    def adaptive_max_pool(input: TileTensor, output_size: Any, return_indices: bool = False) -> TileTensor:
        sizes = sizes_asked(_ADAPTIVE_MAX[place], input, output_size, dims)
        if (out := _by_windows(input, sizes, _MAX, _ADAPTIVE_MAX)) is not None:
            return out
        taps = bins(input.spec.size, sizes)
        return windowed(input, tuple(t.reach for t in taps), _largest_of_taps(taps, input.spec.dims), own_padding=False)

    @rule(_ADAPTIVE_AVERAGE[place])
    def adaptive_avg_pool(input: TileTensor, output_size: Any) -> Tensor:
        if tuples(hashable(output_size), dims) == (1,) * dims:
            return reduce(torch.mean, True, input, tuple(range(-dims, 0)), keepdim=True)
        return to_tiles(input, output_size)

    @per_sample(_ADAPTIVE_AVERAGE[place], dims)
    def to_tiles(input: TileTensor, output_size: Any) -> TileTensor:
        return adaptive_average(input, sizes_asked(_ADAPTIVE_AVERAGE[place], input, output_size, dims))


for _dims in (1, 2, 3):
    _register(_dims)
