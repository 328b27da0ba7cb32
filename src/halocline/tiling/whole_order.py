"""How the whole tensor lies in memory, of which a rank holds a tile: torch fills memory with random numbers in order.

A rank's own strides say it, but for dims in which it holds one pixel or none. Where any rank does, all take the word of
the one that holds most, in one small collective. Where no rank holds two pixels of a dim, its stride is believed: torch
gives a dim of size 1 the stride that its memory format wants there, and the rules keep it. Knows nothing of operators.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch._subclasses.fake_tensor import FakeTensor

from halocline.tiling.boxes import shape
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import Ints, memory_order, strides_in
from halocline.tiling.tensor import TileTensor


@lru_cache(maxsize=4096)
def _speaker(spec: TileSpec) -> int | None:
    """The rank that holds two pixels in the most dims, unless all ranks do in all of them."""
    unclear = [sum(max(2 - held, 0) for held, n in zip(shape(box), spec.size) if n > 1) for box in spec.have]
    return unclear.index(min(unclear)) if any(unclear) else None


def whole_strides(x: TileTensor) -> Ints:
    """The strides that a new tensor in the likeness of the whole one has on one device. Every rank calls this."""
    local, spec = x.local, x.spec
    order = memory_order(local)
    speaker = _speaker(spec)
    if speaker is not None and not isinstance(local, FakeTensor):  # a shape without data needs no such care
        said = spec.exchanger.all_gather(torch.tensor(order, device=local.device))
        order = tuple(said[speaker].tolist())
    return strides_in(order, tuple(x.shape))
