"""Random numbers of the part held of a whole tensor: those that torch draws on one device, in the memory of a part.

A CPU's generator gives one number after the other, as the whole lies in memory. So the whole is drawn in runs, block by
block, and a rank keeps what it holds of each:

    the whole, in memory's order      0 0 0 1 1 1 | 2 2 2 3 3 3 |      two rows of pixels a block
    what is held                        x x   x x     x x   x x        of every row, the second and third pixel

Whether torch draws the same in runs as at once is asked of torch, for every function and its arguments. A GPU's
generator gives any number at once (`philox`). Where neither is so, the whole is one block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from halocline.tiling.boxes import Box, intersect, is_empty, shape, slices
from halocline.tiling.strides import Ints, strides_in
from halocline.tiling.tensor import TileTensor
from halocline.tiling.whole_order import whole_order

BLOCK = 1 << 16
"""How many numbers are drawn at once, so that they stay in the processor's cache."""

# Tensors of 32768 elements and more are where torch starts to use threads.
_ORDER, _SIZE, _RUNS = (1, 2, 0), (3, 7, 2003), (1, 2, 3, 17, 64, 150, 1000, 32768, 8058)


def drawn_part(draw: Callable[..., Tensor], value: float, x: TileTensor, *args: Any, **kwargs: Any) -> Tensor:
    """What this rank holds of `draw(whole, *args)`, for a whole tensor like `x` that is filled with `value`.

    Default generators, and one given, are then as one device leaves them. Every rank calls this.
    """
    local, spec, size = x.local, x.spec, tuple(x.shape)
    order = whole_order(x)
    held: list[tuple[int, int]] = [(0, n) for n in size]
    for dim, interval in zip(spec.dims, spec.held):
        held[dim] = interval
    part = tuple(held)
    limit = prod(size)
    plain = not any(isinstance(v, Tensor) for v in (*args, *kwargs.values())) and not isinstance(local, FakeTensor)
    if plain and limit > BLOCK and local.device.type == "cpu":
        given = tuple(sorted((name, v) for name, v in kwargs.items() if name != "generator"))
        limit = BLOCK if _in_runs(draw, value, local.dtype, args, given) else limit
    if plain and limit > BLOCK and local.is_cuda and not kwargs and _philox() is not None:
        drawn = _philox().part_by_place(draw, value, size, part, order, local, *args)
        if drawn is not None:
            return drawn
    out = torch.empty_strided(shape(part), strides_in(order, shape(part)), dtype=local.dtype, device=local.device)

    def fill(box: Box, depth: int) -> None:
        count = prod(shape(box))
        if count > limit:
            dim = order[depth]
            start, stop = box[dim]
            step = max(limit * (stop - start) // count, 1)
            for first in range(start, stop, step):
                fill((*box[:dim], (first, min(first + step, stop)), *box[dim + 1 :]), depth + 1)
            return
        block = _filled(shape(box), order, value, local)
        drawn = draw(block, *args, **kwargs)
        common = intersect(box, part)
        if not is_empty(common):
            out[slices(common, part)] = drawn[slices(common, box)]

    with torch.no_grad():
        fill(tuple((0, n) for n in size), 0)
    return out


@lru_cache(maxsize=1)
def _philox() -> Any:
    """The module that draws on a GPU by place, where there is Triton."""
    try:
        return import_module("halocline.tiling.philox")
    except ImportError:
        return None


def _filled(size: Ints, order: Ints, value: float, like: Tensor) -> Tensor:
    return torch.empty_strided(size, strides_in(order, size), dtype=like.dtype, device=like.device).fill_(value)


@lru_cache(maxsize=256)
def _in_runs(
    draw: Callable[..., Tensor], value: float, dtype: torch.dtype, args: tuple[Any, ...], given: tuple[Any, ...]
) -> bool:
    """Whether torch, on the CPU, draws the same numbers one run after the other as at once, in the order of memory."""
    generator, kwargs = torch.default_generator, dict(given)
    with torch.random.fork_rng([]), torch.no_grad(), unset_fake_temporarily():
        like = torch.empty(0, dtype=dtype, device="cpu")

        def drawn(*tensors: Tensor) -> tuple[Tensor, Tensor]:
            generator.manual_seed(0)
            parts = [draw(t, *args, **kwargs) for t in tensors]
            flat = [t.permute(_ORDER).flatten() if t.ndim > 1 else t for t in parts]
            return torch.cat(flat), generator.get_state()

        runs, after = drawn(*(_filled((n,), (0,), value, like) for n in _RUNS))
        whole, state = drawn(_filled((prod(_SIZE),), (0,), value, like))
        turned, turned_state = drawn(_filled(_SIZE, _ORDER, value, like))
    return all(map(torch.equal, (whole, turned, state, turned_state), (runs, runs, after, after)))
