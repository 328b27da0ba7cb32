"""Max, average and LP pooling in 1, 2 and 3 dims; adaptive pooling is adaptive.py's.

At the image's border max pooling pads with -inf, and average pooling divides by what one device divides by.
"""

from __future__ import annotations

from collections.abc import Callable
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
from halocline.tiling.rules.convolution import check_image, hashable, tuples
from halocline.tiling.rules.gathered import cut_again
from halocline.tiling.tensor import TileTensor, rule
from halocline.tiling.window import windowed

Ints = tuple[int, ...]


def windows_asked(
    size: Ints, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[tuple[Window, ...], Ints]:
    """The windows of a pooling, and its padding per dim."""
    return _windows(size, hashable(kernel), hashable(stride), hashable(padding), hashable(dilation), ceil_mode)


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


@lru_cache(maxsize=1024)
def _max_operator(kernel: Ints, stride: Ints, dilation: Ints) -> Recomputed:
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]

    def largest(padded: Tensor, where: Geometry) -> Tensor:
        return function(padded, kernel, stride, where.padding, dilation)

    if len(kernel) == 1:
        return Recomputed(largest)
    aten = torch.ops.aten
    choose, give = (
        (aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward),
        (aten.max_pool3d_with_indices, aten.max_pool3d_with_indices_backward),
    )[len(kernel) - 2]
    return Indexed(
        largest,
        lambda padded, where: choose(padded, kernel, stride, where.padding, dilation, False),
        lambda grad, like, numbers, where: give(grad, like, kernel, stride, where.padding, dilation, False, numbers),
    )


def lowest(dtype: torch.dtype) -> float:
    """What max pooling pads with."""
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _max_pool(functions: tuple[Callable[..., Any], ...], dims: int) -> None:
    @rule(*functions)
    @per_sample(functions[0], dims)
    def max_pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> TileTensor:
        check_image(functions[0], input, dims)
        assert isinstance(input, TileTensor) and not return_indices  # torch has another function for indices
        windows, _ = windows_asked(input.spec.size, kernel_size, stride, padding, dilation, ceil_mode)
        operator = _max_operator(
            tuple(w.kernel for w in windows), tuple(w.stride for w in windows), tuple(w.dilation for w in windows)
        )
        return windowed(input, windows, operator, fill=lowest(input.dtype))


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
    kernel, stride = tuple(w.kernel for w in windows), tuple(w.stride for w in windows)
    function: Callable[..., Tensor] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
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
        out = function(padded, kernel, stride, where.padding)
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
    windows, pads = windows_asked(input.spec.size, kernel_size, stride, padding, 1, ceil_mode)
    operator = _average_operator(windows, input.spec.size, pads, count_include_pad, hashable(divisor_override))
    return windowed(input, windows, operator)


def _avg_pool(function: Callable[..., Any], dims: int) -> None:
    @rule(function)
    @per_sample(function, dims)
    def avg_pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> TileTensor:
        check_image(function, input, dims)
        assert isinstance(input, TileTensor)
        divisor = () if divisor_override is None else (divisor_override,)  # which one dim does not know
        if not input.dtype.is_floating_point:  # which torch divides and rounds in its own way
            out = function(input.full(), kernel_size, stride, padding, ceil_mode, count_include_pad, *divisor)
            return cut_again(out, input.spec)
        return _average(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _lp_pool(function: Callable[..., Any], dims: int) -> None:
    @rule(function)
    @per_sample(function, dims)
    def lp_pool(
        input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> TileTensor:
        check_image(function, input, dims)
        assert isinstance(input, TileTensor)
        out = _average(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)  # type: ignore[arg-type]
        powers = torch.sign(out) * F.relu(torch.abs(out))
        return (powers * prod(tuples(hashable(kernel_size), dims))).pow(1.0 / norm_type)  # type: ignore[return-value]


_max_pool((F.max_pool1d, torch.max_pool1d), 1)
_max_pool((F.max_pool2d, torch.max_pool2d), 2)
_max_pool((F.max_pool3d, torch.max_pool3d), 3)
for _dims, (_average_function, _lp_function) in enumerate(
    ((F.avg_pool1d, F.lp_pool1d), (F.avg_pool2d, F.lp_pool2d), (F.avg_pool3d, F.lp_pool3d)), start=1
):
    _avg_pool(_average_function, _dims)
    _lp_pool(_lp_function, _dims)
