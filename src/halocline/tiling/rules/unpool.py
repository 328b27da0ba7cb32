"""max_unpool: each value goes to the pixel whose number in the whole image an index names, which may lie anywhere.

Numbers from max pooling without overlap lie in their own window, so that nothing moves. The ranks agree whether that is
so; if one of them has a value for another's pixels, all gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from halocline.tiling.rules.convolution import tuples
from halocline.tiling.rules.elementwise import align
from halocline.tiling.rules.gathered import cut_again
from halocline.tiling.rules.pool_indices import coordinates, numbered
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import suggested_format
from halocline.tiling.tensor import TileTensor, rule

Ints = tuple[int, ...]


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


def _max_unpool(function: Callable[..., Any], dims: int) -> None:
    @rule(function)
    def max_unpool(
        input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
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


_max_unpool(F.max_unpool1d, 1)
_max_unpool(F.max_unpool2d, 2)
_max_unpool(F.max_unpool3d, 3)
