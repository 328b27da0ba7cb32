"""Another order in memory, dtype or device: what returns the tensor itself where it is already as asked for.

What is written to the result is then seen in the tensor, and else it is not. A tile of one pixel lies as asked for more
often than the whole does. So where a rank holds less than two pixels of a dim, ranks agree in one small collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from halocline.tiling.strides import is_alias_of, memory_order
from halocline.tiling.tensor import TileTensor, rule
from halocline.tiling.whole_order import likeness, unclear


def _lies(input: TileTensor, memory_format: torch.memory_format, ask: Callable[[Tensor], bool]) -> bool:
    """Whether the whole tensor lies as asked for on one device. Every rank calls this."""
    local, spec, lacking = input.local, input.spec, unclear(input.spec)
    whole = likeness(input)
    if whole is not None:
        return ask(whole)
    lies = ask(local)
    if not any(lacking) or isinstance(local, FakeTensor):
        return lies
    # Those who can see it say whether it does, and the one who sees most in which order the dims lie.
    seen = lies or bool(lacking[spec.exchanger.rank])
    said = spec.exchanger.all_gather(torch.tensor([seen, *memory_order(local)], device=local.device)).tolist()
    order = said[lacking.index(min(lacking))][1:]
    asked = [*range(local.ndim)] if memory_format is torch.contiguous_format else [0, *range(2, local.ndim), 1]
    orders = [[d for d in dims if input.shape[d] > 1] for dims in (order, asked)]
    return all(seen for seen, *_ in said) and orders[0] == orders[1]


def _agreed(input: TileTensor, memory_format: torch.memory_format, give: Callable[[Tensor], Tensor]) -> TileTensor:
    """The tile of what is asked for: `input` itself, or a copy, as on one device and on the other ranks."""
    if _lies(input, memory_format, lambda part: is_alias_of(give(part), part)):
        return input
    out = give(input.local)
    return TileTensor.wrap(out.clone(memory_format=memory_format) if out is input.local else out, input.spec)


@rule(Tensor.is_contiguous)
def is_contiguous(input: TileTensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    """That of the whole: ranks that answered for what they hold would go different ways."""
    return _lies(input, memory_format, lambda part: part.is_contiguous(memory_format=memory_format))


@rule(Tensor.contiguous)
def contiguous(input: TileTensor, memory_format: torch.memory_format = torch.contiguous_format) -> TileTensor:
    return _agreed(input, memory_format, lambda part: part.contiguous(memory_format=memory_format))


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
            if not kwargs.get("copy"):
                return _agreed(input, asked, lambda part: part.to(memory_format=asked))
        return input if out is input.local else TileTensor.wrap(out, input.spec)


for _function in (Tensor.to, Tensor.type_as, Tensor.type):
    _convert(_function)
