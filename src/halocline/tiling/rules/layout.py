"""Another order in memory, dtype or device: what returns the tensor itself where it is already as asked for.

What is written to the result is then seen in the tensor, and else it is not. A tile of one pixel lies as asked for more
often than the whole does. So where a rank holds less than two pixels of a dim, ranks agree in one small collective.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from halocline.tiling.boxes import shape
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import memory_order
from halocline.tiling.tensor import TileTensor, rule


@lru_cache(maxsize=4096)
def _unclear(spec: TileSpec) -> tuple[int, ...]:
    """By rank, how many pixels it lacks to show how the whole lies: two of each dim, or one where there is but one."""
    return tuple(sum(max(min(n, 2) - held, 0) for held, n in zip(shape(box), spec.size)) for box in spec.have)


def _agreed(out: Tensor, input: TileTensor, memory_format: torch.memory_format) -> TileTensor:
    """The tile of a result, which is what `input` holds or a copy of it, as on the other ranks."""
    local, spec, unclear = input.local, input.spec, _unclear(input.spec)
    if any(unclear) and not isinstance(local, FakeTensor):
        # Those who can see it say whether they copy, and the one who sees most in which order the dims lie.
        copies = out is not local and not unclear[spec.exchanger.rank]
        said = spec.exchanger.all_gather(torch.tensor([copies, *memory_order(local)], device=local.device)).tolist()
        order = said[unclear.index(min(unclear))][1:]
        asked = [*range(local.ndim)] if memory_format is torch.contiguous_format else [0, *range(2, local.ndim), 1]
        lies = [[d for d in dims if input.shape[d] > 1] for dims in (order, asked)]
        if not any(copied for copied, *_ in said) and lies[0] == lies[1]:
            return input
        out = local.clone(memory_format=memory_format) if out is local else out
    return input if out is local else TileTensor.wrap(out, spec)


@rule(Tensor.contiguous)
def contiguous(input: TileTensor, memory_format: torch.memory_format = torch.contiguous_format) -> TileTensor:
    return _agreed(input.local.contiguous(memory_format=memory_format), input, memory_format)


def _convert(function: Callable[..., Any]) -> None:
    @rule(function)
    def convert(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Another tensor among the arguments only gives its dtype and device: it may be of any shape."""
        args = tuple(a.local if isinstance(a, TileTensor) else a for a in args)
        kwargs = {k: a.local if isinstance(a, TileTensor) else a for k, a in kwargs.items()}
        if not isinstance(input, TileTensor):
            return function(input, *args, **kwargs)
        out = function(input.local, *args, **kwargs)
        if not isinstance(out, Tensor):  # type() without arguments
            return out
        asked = kwargs.get("memory_format")
        if asked not in (None, torch.preserve_format) and out.dtype == input.dtype and out.device == input.device:
            return _agreed(out, input, asked) if not kwargs.get("copy") else TileTensor.wrap(out, input.spec)
        return input if out is input.local else TileTensor.wrap(out, input.spec)


for _function in (Tensor.to, Tensor.type_as, Tensor.type):
    _convert(_function)
