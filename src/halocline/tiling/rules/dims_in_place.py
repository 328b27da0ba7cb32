"""What changes the dims of a tensor itself: unsqueeze_, squeeze_, transpose_ and their kin.

The tile becomes what the function without the underscore makes of it. One that would have to be gathered cannot: it is
refused. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from halocline.tiling.rules.shape import reverse_dims, squeeze, transpose, unsqueeze
from halocline.tiling.tensor import TileTensor, rule, untiled


def _in_place(function: Any, changed: Callable[..., Tensor]) -> None:
    @rule(function)
    def in_place(input: TileTensor, *args: Any) -> TileTensor:
        if input.is_leaf and input.requires_grad:  # as torch itself says
            raise RuntimeError("a leaf that requires grad cannot change in place; write it without the underscore")
        gone = {d for d in input.spec.dims if input.shape[d] == 1} if changed is squeeze else ()
        if gone and (not args or any(d in gone for d in _from_the_end(args, input.ndim))):
            raise untiled(function, (input, *args), why="a tile cannot become a whole tensor in place; use squeeze")
        out = changed(input, *args)
        assert isinstance(out, TileTensor)
        if input.seen_by is not None:
            before = TileTensor.wrap(input.local, input.spec)
            before.seen_by = input.seen_by
            input.seen_by = (getattr(Tensor, function.__name__.removesuffix("_")), before, args, {})
        input._local, input.spec = out.local, out.spec
        return input


def _from_the_end(args: tuple[Any, ...], ndim: int) -> list[int]:
    named = args[0] if isinstance(args[0], (tuple, list)) else args
    return [int(d) % ndim - ndim for d in named]


for _function, _changed in (
    (Tensor.unsqueeze_, unsqueeze),
    (Tensor.squeeze_, squeeze),
    (Tensor.transpose_, transpose),
    (Tensor.swapaxes_, transpose),
    (Tensor.swapdims_, transpose),
    (Tensor.t_, reverse_dims),
):
    _in_place(_function, _changed)
