"""Another order in memory, dtype or device: what returns the tensor itself where it is already as asked for.

What is written to the result is then seen in the tensor, and else it is not. A tile of one pixel lies as asked for more
often than the whole does. So where a rank holds less than two pixels of a dim, ranks agree, in one small collective: if
any of them copies, all do.
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
from halocline.tiling.tensor import TileTensor, rule


@lru_cache(maxsize=4096)
def _unclear(spec: TileSpec) -> bool:
    """Whether any rank holds so few pixels of a dim that they do not show how the whole lies."""
    return any(held < min(n, 2) for box in spec.have for held, n in zip(shape(box), spec.size))


def _agreed(out: Tensor, input: TileTensor, memory_format: torch.memory_format) -> TileTensor:
    """The tile of a result, which is what `input` holds or a copy of it, as on the other ranks."""
    local, spec = input.local, input.spec
    if _unclear(spec) and not isinstance(local, FakeTensor):
        # An empty tile has no say, and does what the others do.
        copied = torch.tensor([out is not local and local.numel() > 0], dtype=torch.uint8, device=local.device)
        if not bool(spec.exchanger.all_gather(copied).any()):
            out = local if local.numel() == 0 else out
        elif out is local:
            out = local.clone(memory_format=memory_format)
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
        if asked not in (None, torch.preserve_format):
            return _agreed(out, input, asked)
        return input if out is input.local else TileTensor.wrap(out, input.spec)


for _function in (Tensor.to, Tensor.type_as, Tensor.type):
    _convert(_function)
