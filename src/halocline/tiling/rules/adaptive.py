"""Adaptive average and max pooling to any size: output i reads pixels [floor(i n / o), ceil((i + 1) n / o)).

An average to one pixel leaves the tiling by a sum over ranks; everything else stays tiles, some of them perhaps empty.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.geometry import Geometry
from halocline.tiling.lanes import per_sample
from halocline.tiling.local_operator import Recomputed
from halocline.tiling.resample import Taps, largest, resample
from halocline.tiling.rules.convolution import check_image, hashable, tuples
from halocline.tiling.rules.reduction import mean
from halocline.tiling.statistics import LOW_PRECISION
from halocline.tiling.strides import in_order_of
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.window import windowed

Ints = tuple[int, ...]
_AVERAGE: tuple[Callable[..., Any], ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_ADAPTIVE_AVERAGE: tuple[Callable[..., Any], ...] = (
    F.adaptive_avg_pool1d,
    F.adaptive_avg_pool2d,
    F.adaptive_avg_pool3d,
)
_MAX: tuple[Callable[..., Any], ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)

_ADAPTIVE_MAX: tuple[Callable[..., Any], ...] = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)


@lru_cache(maxsize=1024)
def bins(size: int, out: int) -> Taps:
    starts = [i * size // out for i in range(out)]
    counts = [-(-(i + 1) * size // out) - start for i, start in enumerate(starts)]
    return Taps(size, tuple(starts), tuple((1.0 / n,) * n for n in counts))


@lru_cache(maxsize=1024)
def _average(taps: tuple[Taps, ...], dims: Ints) -> Recomputed:
    def pool(padded: Tensor, where: Geometry) -> Tensor:
        wide = padded.float() if padded.dtype in LOW_PRECISION else padded
        for t, dim, out, given in zip(taps, dims, where.out_box, where.in_box):
            wide = resample(wide, dim, t, out, given)
        return in_order_of(wide.to(padded.dtype), padded, _ADAPTIVE_AVERAGE[len(dims) - 1], 2)

    return Recomputed(pool)


@lru_cache(maxsize=1024)
def _largest(taps: tuple[Taps, ...], dims: Ints) -> Recomputed:
    def pool(padded: Tensor, where: Geometry) -> Tensor:
        wide = padded
        # The last dim first: of equal pixels the first in reading order is then the one found, as on one device.
        for t, dim, out, given in reversed(list(zip(taps, dims, where.out_box, where.in_box))):
            wide = largest(wide, dim, t, out, given)
        return in_order_of(wide, padded, _ADAPTIVE_MAX[len(dims) - 1], 2)

    return Recomputed(pool)


def sizes_asked(function: Any, input: Tensor, output_size: Any, dims: int) -> Ints:
    check_image(function, input, dims)
    wanted = tuples(hashable(output_size), dims)
    if any(n is not None and n < 0 for n in wanted):
        raise ValueError(f"output_size={wanted} must not be negative")
    if 0 in wanted:
        raise untiled(function, (input, output_size), why="a result without pixels has no rule")
    return tuple(n if w is None else w for w, n in zip(wanted, input.shape[-dims:]))


def adaptive_average(input: TileTensor, sizes: Ints) -> TileTensor:
    kernel = len(sizes) < 3 or input.device.type != "cpu" or input.dtype not in LOW_PRECISION  # or there is none
    if kernel and all(n % o == 0 for n, o in zip(input.spec.size, sizes)):
        out = _AVERAGE[len(sizes) - 1](input, tuple(n // o for n, o in zip(input.spec.size, sizes)))
        return TileTensor.wrap(in_order_of(out.local, input.local, _ADAPTIVE_AVERAGE[len(sizes) - 1], 2), out.spec)
    taps = tuple(bins(n, o) for n, o in zip(input.spec.size, sizes))
    return windowed(input, tuple(t.reach for t in taps), _average(taps, input.spec.dims), own_padding=False)


def _register_average(function: Callable[..., Any], dims: int) -> None:
    @rule(function)
    def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
        if tuples(hashable(output_size), dims) == (1,) * dims:
            return mean(input, tuple(range(-dims, 0)), keepdim=True)
        return tiles(input, output_size)

    @per_sample(function, dims)
    def tiles(input: Tensor, output_size: Any) -> Tensor:
        sizes = sizes_asked(function, input, output_size, dims)
        assert isinstance(input, TileTensor)
        return adaptive_average(input, sizes)


def _register_max(function: Callable[..., Any], dims: int) -> None:
    @rule(function)
    @per_sample(function, dims)
    def adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False) -> TileTensor:
        sizes = sizes_asked(function, input, output_size, dims)
        assert isinstance(input, TileTensor) and not return_indices  # torch has another function for indices
        if all(n % o == 0 for n, o in zip(input.spec.size, sizes)):
            out = _MAX[dims - 1](input, tuple(n // o for n, o in zip(input.spec.size, sizes)))
            return TileTensor.wrap(in_order_of(out.local, input.local, _ADAPTIVE_MAX[dims - 1], 2), out.spec)
        taps = tuple(bins(n, o) for n, o in zip(input.spec.size, sizes))
        return windowed(input, tuple(t.reach for t in taps), _largest(taps, input.spec.dims), own_padding=False)


for _dims, _functions in enumerate(
    (
        (F.adaptive_avg_pool1d, F.adaptive_max_pool1d),
        (F.adaptive_avg_pool2d, F.adaptive_max_pool2d),
        (F.adaptive_avg_pool3d, F.adaptive_max_pool3d),
    ),
    start=1,
):
    _register_average(_functions[0], _dims)
    _register_max(_functions[1], _dims)
