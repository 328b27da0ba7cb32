"""Values written where other values say: scatter, index_add, index_put, masked_scatter and their kin, in place or not.

Written within each pixel (one-hot classes) they stay on their tile. What writes among pixels is computed on the whole
image, of which each rank keeps its part. Indices and sources may be tiles, or plain and of the whole image's size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.plain import for_tiles
from halocline.tiling.rules.choose import unwritten, within_pixels
from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.rules.gathered import held_part, on_wholes, recut, whole
from halocline.tiling.rules.shape import from_front
from halocline.tiling.tensor import TileTensor, rule


def written_whole(function: Callable[..., Any], in_place: bool, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`function`, which writes into its first argument or into a copy of it, on whole tensors."""
    if not isinstance(input, TileTensor):
        return on_wholes(function, input, *args, **kwargs)
    out = on_wholes(function, input.full().clone(), *args, **kwargs)
    if in_place:
        input.local.copy_(part_of(out, input.spec))
        return input
    return recut(out, input.spec) if out.shape == input.shape else out


def _named(*names: str) -> list[tuple[Callable[..., Any], bool]]:
    """The functions of these names, and whether they work in place."""
    forms = [n for name in names for n in (name, name + "_")]
    found = {getattr(space, n, None): n.endswith("_") for n in forms for space in (torch, Tensor)}
    return [(function, in_place) for function, in_place in found.items() if function is not None]


def _scatter(function: Callable[..., Any], in_place: bool) -> None:
    @rule(function)
    def scatter(input: Tensor, dim: int, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """A source is a tensor like the index, or a number."""
        unwritten(function, (input, dim, index, *args), kwargs)
        # The source is the next argument, by place or by one of its names.
        names = [name for name in ("src", "value") if name in kwargs]
        source = args[0] if args else kwargs[names[0]] if names else None
        tensors = (input, index, source) if isinstance(source, Tensor) else (input, index)
        spec = None if in_place and not isinstance(input, TileTensor) else within_pixels(tensors, dim)
        if spec is None:
            return written_whole(function, in_place, input, dim, index, *args, **kwargs)
        parts = [held_part(t, spec) for t in tensors]
        if len(parts) > 2:
            args = (parts[2], *args[1:])
            kwargs = {name: value for name, value in kwargs.items() if name not in names}
        out = function(parts[0], dim, parts[1], *args, **kwargs)
        return input if in_place else TileTensor.wrap(out, spec)


for _function, _in_place in _named("scatter", "scatter_add", "scatter_reduce"):
    _scatter(_function, _in_place)


def _indexed(function: Callable[..., Any], in_place: bool) -> None:
    @rule(function)
    def indexed(input: Tensor, dim: int, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """A list of places along one dim, and what is written to all pixels there: a tensor like the input, or one
        number."""
        unwritten(function, (input, dim, index, *args), kwargs)
        names = [name for name in ("source", "tensor", "value") if name in kwargs]
        source = args[0] if args else kwargs[names[0]] if names else None
        number = not isinstance(source, Tensor) or source.ndim == 0
        spec = within_pixels((input,) if number else (input, source), dim) if isinstance(input, TileTensor) else None
        if spec is None or (number and isinstance(source, TileTensor)):
            return written_whole(function, in_place, input, dim, index, *args, **kwargs)
        assert isinstance(input, TileTensor)
        if isinstance(source, Tensor):
            source = for_tiles(source, spec.exchanger) if number else held_part(source, spec)
        kwargs = {name: value for name, value in kwargs.items() if name not in names}
        out = function(input.local, from_front(dim, input.ndim), whole(index), source, *args[1:], **kwargs)
        return input if in_place else TileTensor.wrap(out, spec)


for _function, _in_place in _named("index_add", "index_copy", "index_fill", "index_reduce"):
    _indexed(_function, _in_place)


_VIEWS_WRITTEN = ("select_scatter", "slice_scatter", "diagonal_scatter")


def _anywhere(function: Callable[..., Any], in_place: bool) -> None:
    @rule(function)
    def write(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        unwritten(function, (input, *args), kwargs)
        return written_whole(function, in_place, input, *args, **kwargs)


for _function, _in_place in _named("index_put", "put", "masked_scatter", *_VIEWS_WRITTEN):
    _anywhere(_function, _in_place)
