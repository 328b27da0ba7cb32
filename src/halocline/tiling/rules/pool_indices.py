"""Max pooling that says which pixels it chose: their numbers in the whole image, row-major, as one device gives them.

The values are pooling.py's and adaptive.py's; the numbers take a second pass over the same windows, without gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.constant import constant
from halocline.tiling.geometry import Geometry
from halocline.tiling.lanes import per_sample
from halocline.tiling.local_operator import Recomputed
from halocline.tiling.resample import Taps
from halocline.tiling.rules.adaptive import bins, sizes_asked
from halocline.tiling.rules.convolution import check_image
from halocline.tiling.rules.pooling import lowest, windows_asked
from halocline.tiling.strides import in_order_of
from halocline.tiling.tensor import TileTensor, rule
from halocline.tiling.window import windowed

Ints = tuple[int, ...]


def coordinates(numbers: Tensor, size: Sequence[int]) -> list[Tensor]:
    """Where the pixels with these numbers lie in an image of `size`; the first coordinate may leave it."""
    found = []
    for n in reversed(size[1:]):
        found.append(numbers % n)
        numbers = numbers // n
    return [numbers, *reversed(found)]


def numbered(places: Sequence[Tensor], size: Sequence[int]) -> Tensor:
    """The numbers of the pixels at `places` in an image of `size`."""
    numbers = places[0]
    for place, n in zip(places[1:], size[1:]):
        numbers = numbers * n + place
    return numbers


def _numbers(input: TileTensor, reaches: Any, operator: Recomputed, **kwargs: Any) -> TileTensor:
    with torch.no_grad():
        out = windowed(input.detach(), reaches, operator, **kwargs)  # type: ignore[arg-type]
    return TileTensor.wrap(out.local.long(), out.spec)  # a rank without pixels made zeros of the input's dtype


def _laid_out(input: TileTensor, results: tuple[Tensor, Tensor], pool: Callable[[Tensor], Tensor]) -> Any:
    """Both lie in memory as those of `pool` do on one device; max_pool1d alone gives values that lie otherwise."""
    return tuple(
        TileTensor.wrap(in_order_of(t.local, input.local, pool), t.spec) if isinstance(t, TileTensor) else t
        for t in results
    )


# ----------------------------------------------------------------------------------------------------- sliding windows


@lru_cache(maxsize=1024)
def _chosen(size: Ints, kernel: Ints, stride: Ints, dilation: Ints) -> Recomputed:
    dims = len(size)
    aten = torch.ops.aten
    choose: Callable[..., tuple[Tensor, Tensor]] = (
        torch.max_pool1d_with_indices,
        aten.max_pool2d_with_indices,
        aten.max_pool3d_with_indices,
    )[dims - 1]

    def number(padded: Tensor, where: Geometry) -> Tensor:
        local = choose(padded, kernel, stride, where.padding, dilation, False)[1]
        places = []
        for place, (start, _), step in zip(coordinates(local, padded.shape[-dims:]), where.padded, dilation):
            # Where no pixel exceeds -inf the window's first is chosen; one device skips those of the padding.
            place = place + start
            places.append(torch.where(place < 0, place % step, place) if start < 0 else place)
        return numbered(places, size)

    return Recomputed(number)


def _max_pool(function: Callable[..., Any], values: Callable[..., Any], dims: int) -> None:
    @per_sample(lambda *args, **kwargs: function(*args, **kwargs)[1], dims)
    def numbers(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> TileTensor:
        check_image(function, input, dims)
        assert isinstance(input, TileTensor)
        windows, _ = windows_asked(input.spec.size, kernel_size, stride, padding, dilation, ceil_mode)
        kernel, strides = tuple(w.kernel for w in windows), tuple(w.stride for w in windows)
        operator = _chosen(input.spec.size, kernel, strides, tuple(w.dilation for w in windows))
        return _numbers(input, windows, operator, fill=lowest(input.dtype))

    def of_single_pixels(image: Tensor) -> Tensor:
        return function(image, 1)[0]

    @rule(function)
    def max_pool_with_indices(input: TileTensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        args = args[:5]  # the last argument says that indices are wanted
        kwargs.pop("return_indices", None)
        return _laid_out(input, (values(input, *args, **kwargs), numbers(input, *args, **kwargs)), of_single_pixels)


# ------------------------------------------------------------------------------------------------------- adaptive ones


@lru_cache(maxsize=1024)
def _adapted(taps: tuple[Taps, ...], size: Ints) -> Recomputed:
    dims = len(taps)
    lengths = tuple(max(len(w) for w in t.weights) for t in taps)

    @constant
    def read(dim: int, out: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Per output, its first pixel, and all that it reads; the last one is repeated in bins shorter than others."""
        starts = torch.tensor(taps[dim].starts[slice(*out)], device=device)
        counts = torch.tensor([len(w) for w in taps[dim].weights[slice(*out)]], device=device)
        steps = torch.arange(lengths[dim], device=device).minimum(counts[:, None] - 1)
        return starts, starts[:, None] + steps

    def number(padded: Tensor, where: Geometry) -> Tensor:
        index: list[Any] = [Ellipsis]
        firsts = []
        for d, (out, (origin, _)) in enumerate(zip(where.out_box, where.in_box)):
            starts, pixels = read(d, out, padded.device)
            shape = [1] * (2 * dims)
            shape[d], shape[dims + d] = pixels.shape
            index.append((pixels - origin).view(shape))
            firsts.append(starts.view(-1, *(1,) * (dims - 1 - d)))
        # Of equal pixels argmax finds the first, in reading order, as one device does.
        best = padded[tuple(index)].flatten(-dims).argmax(-1)
        return numbered([first + step for first, step in zip(firsts, coordinates(best, lengths))], size)

    return Recomputed(number)


def _adaptive_max_pool(function: Callable[..., Any], values: Callable[..., Any], dims: int) -> None:
    @per_sample(lambda *args, **kwargs: function(*args, **kwargs)[1], dims)
    def numbers(input: Tensor, output_size: Any) -> TileTensor:
        sizes = sizes_asked(function, input, output_size, dims)
        assert isinstance(input, TileTensor)
        taps = tuple(bins(n, o) for n, o in zip(input.spec.size, sizes))
        return _numbers(input, tuple(t.reach for t in taps), _adapted(taps, input.spec.size), own_padding=False)

    def to_two_pixels(image: Tensor) -> Tensor:
        return function(image, 2)[0]

    @rule(function)
    def adaptive_max_pool_with_indices(
        input: TileTensor, output_size: Any, return_indices: bool = True
    ) -> tuple[Tensor, Tensor]:
        return _laid_out(input, (values(input, output_size), numbers(input, output_size)), to_two_pixels)


_FUNCTIONS: tuple[tuple[Any, ...], ...] = (
    (F.max_pool1d_with_indices, F.max_pool1d, F.adaptive_max_pool1d_with_indices, F.adaptive_max_pool1d),
    (F.max_pool2d_with_indices, F.max_pool2d, F.adaptive_max_pool2d_with_indices, F.adaptive_max_pool2d),
    (F.max_pool3d_with_indices, F.max_pool3d, F.adaptive_max_pool3d_with_indices, F.adaptive_max_pool3d),
)
for _dims, (_pool, _values, _adaptive, _adaptive_values) in enumerate(_FUNCTIONS, start=1):
    _max_pool(_pool, _values, _dims)
    _adaptive_max_pool(_adaptive, _adaptive_values, _dims)
