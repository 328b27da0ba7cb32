"""Max pooling that says which pixels it chose, and max_unpool, which puts values back at those.

Pixels have the numbers of the whole image, row-major, as one device gives them. The values are pooling.py's; the
numbers take a second pass over the same windows, without gradient. Numbers from max pooling without overlap lie in
their own window, so that nothing moves when values are put back. The ranks agree whether that is so; if one of them has
a value for another's pixels, all gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from halocline.tiling.constant import constant
from halocline.tiling.geometry import Geometry
from halocline.tiling.lanes import per_sample
from halocline.tiling.local_operator import Recomputed
from halocline.tiling.resample import Taps
from halocline.tiling.rules.convolution import tuples
from halocline.tiling.rules.elementwise import align
from halocline.tiling.rules.gathered import cut_again
from halocline.tiling.rules.pooling import bins, lowest, numbers_of, sizes_asked, windows_asked
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import in_order_of, suggested_format
from halocline.tiling.tensor import TileTensor, rules
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


def _second(function: Callable[..., Any]) -> Callable[..., Tensor]:
    return wraps(function)(lambda *args, **kwargs: function(*args, **kwargs)[1])


def _max_pool(function: Callable[..., Any], dims: int) -> None:
    @per_sample(_second(function), dims)
    def numbers(input: TileTensor, *asked: Any) -> TileTensor:
        windows, _ = windows_asked(input, *asked)
        operator = _chosen(input.spec.size, *numbers_of(windows))
        return _numbers(input, windows, operator, fill=lowest(input.dtype))

    values = getattr(F, f"max_pool{dims}d")
    # Both lie in memory as those of single pixels do on one device; max_pool1d alone gives values that lie otherwise.
    rules((function,), values, numbers, 5, lambda image: function(image, 1)[0])(_values_and_numbers)


def _values_and_numbers(
    function: Any,
    values: Callable[..., Any],
    numbers: Callable[..., Any],
    count: int,
    pool: Callable[[Tensor], Tensor],
    input: TileTensor,
    *asked: Any,
) -> tuple[Any, ...]:
    """Of the first `count` arguments: the last one says that indices are wanted."""
    results = values(input, *asked[:count]), numbers(input, *asked[:count])
    return tuple(
        TileTensor.wrap(in_order_of(t.local, input.local, pool), t.spec) if isinstance(t, TileTensor) else t
        for t in results
    )


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


def _adaptive_max_pool(function: Callable[..., Any], dims: int) -> None:
    @per_sample(_second(function), dims)
    def numbers(input: TileTensor, output_size: Any) -> TileTensor:
        taps = bins(input.spec.size, sizes_asked(function, input, output_size, dims))
        return _numbers(input, tuple(t.reach for t in taps), _adapted(taps, input.spec.size), own_padding=False)

    values = getattr(F, f"adaptive_max_pool{dims}d")
    rules((function,), values, numbers, 1, lambda image: function(image, 2)[0])(_values_and_numbers)


# --------------------------------------------------------------------------------------------------------- putting back


def _put(values: Tensor, numbers: Tensor, size: Sequence[int]) -> Tensor:
    """An image of `size`, zero but for the values at their numbers."""
    dims = len(size)
    empty = values.new_zeros(*values.shape[:-dims], prod(size))
    out = empty.scatter(-1, numbers.flatten(-dims), values.flatten(-dims)).unflatten(-1, tuple(size))
    return out.contiguous(memory_format=suggested_format(values)) if dims == 2 else out  # as torch's own does


@lru_cache(maxsize=1024)
def _unpooled(spec: TileSpec, size: Ints, stride: Ints, padding: Ints) -> TileSpec:
    """The tiles of the result: cut where the first window of each tile begins."""
    cuts = []
    for dim, line in zip(spec.dims, spec.cuts):
        if dim >= -len(size):
            n, step, pad = size[dim], stride[dim], padding[dim]
            line = (0, *(min(max(c * step - pad, 0), n) for c in line[1:-1]), n)
        cuts.append(line)
    return spec.with_cuts(tuple(cuts))


def _whole_size(input: Tensor, kernel: Ints, stride: Ints, padding: Ints, asked: Any) -> Ints:
    """The size asked for, which must be within a stride of the usual one; the usual one for None."""
    dims = len(kernel)
    usual = tuple((n - 1) * s + k - 2 * p for n, k, s, p in zip(input.shape[-dims:], kernel, stride, padding))
    if asked is None:
        return usual
    size = tuple(int(n) for n in asked)[-dims:]
    if len(asked) not in (dims, dims + 2) or any(abs(n - m) >= s for n, m, s in zip(size, usual, stride)):
        raise ValueError(f"output_size={tuple(asked)} must be within a stride, {stride}, of {usual}")
    return size


@rules((F.max_unpool1d,), 1)
@rules((F.max_unpool2d,), 2)
@rules((F.max_unpool3d,), 3)
def max_unpool(
    function: Any,
    dims: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    output_size: Any = None,
) -> TileTensor:
    if input.shape != indices.shape:
        raise ValueError(f"max_unpool of {tuple(input.shape)} needs as many indices, got {tuple(indices.shape)}")
    kernel, pads = tuples(kernel_size, dims), tuples(padding, dims)
    strides = kernel if stride is None else tuples(stride, dims)
    size = _whole_size(input, kernel, strides, pads, output_size)
    (values, numbers), held = align((input, indices), function)
    spec = held.without_margin()
    mine = TileTensor.wrap(values, held).cropped(spec)
    named = TileTensor.wrap(numbers, held).cropped(spec)
    out = _unpooled(spec, size, strides, pads)
    box = dict(zip(out.dims, out.box))
    own = [box.get(d - dims, (0, n)) for d, n in enumerate(size)]
    places = [c - start for c, (start, _) in zip(coordinates(named.local, size), own)]
    sizes = [stop - start for start, stop in own]
    if _elsewhere(places, sizes, spec):
        return cut_again(_put(mine.full(), named.full(), size), out)
    return TileTensor.wrap(_put(mine.local, numbered(places, sizes), sizes), out)


def _elsewhere(places: Sequence[Tensor], sizes: Sequence[int], spec: TileSpec) -> bool:
    """Whether any rank has a value for a pixel that it does not own; the same on all of them."""
    if isinstance(places[0], FakeTensor):  # a run without data: both ways give the same tiles
        return False
    outside = torch.stack([((c < 0) | (c >= n)).any() for c, n in zip(places, sizes)]).any()
    return bool(spec.exchanger.all_reduce(outside.long()))


for _dims in (1, 2, 3):
    _max_pool(getattr(F, f"max_pool{_dims}d_with_indices"), _dims)
    _adaptive_max_pool(getattr(F, f"adaptive_max_pool{_dims}d_with_indices"), _dims)
