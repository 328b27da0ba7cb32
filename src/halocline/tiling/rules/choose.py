"""Values chosen by other values, to read: gather, take, nonzero, unique and masked_select.

Chosen within each pixel (a class per pixel) they stay tiles; what chooses among pixels is computed on the whole image
and is a plain tensor. An index or mask may be a tile, or plain and of the whole image's size. Writing is in scatter.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.elementwise import nary
from halocline.tiling.rules.gathered import held_part, on_wholes
from halocline.tiling.rules.shape import from_front
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, find_tiles, rule, untiled


def within_pixels(tensors: Sequence[Any], dim: Any) -> TileSpec | None:
    """The tiles on which tensors can choose along `dim` pixel by pixel: none of them cuts it, and all are as large as
    the image in the dims that are cut, since a smaller index chooses for the first pixels only. None if they cannot.
    """
    spec = find_tiles(tensors)[0].spec
    ndim = tensors[0].ndim
    if not isinstance(dim, int) or any(t.ndim != ndim for t in tensors):
        return None
    dim = from_front(dim, ndim)
    if any(dim in t.spec.positions(ndim) for t in find_tiles(tensors)):
        return None
    return spec if all(t.shape[d] == n for t in tensors for d, n in zip(spec.dims, spec.size)) else None


def unwritten(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if kwargs.get("out") is not None:
        raise untiled(function, args, kwargs, why="out= has no rule; assign the result instead")
    kwargs.pop("out", None)


@rule(torch.gather, Tensor.gather)
def gather(input: Tensor, dim: int, index: Tensor, **kwargs: Any) -> Tensor:
    unwritten(torch.gather, (input, dim, index), kwargs)
    spec = within_pixels((input, index), dim)
    if spec is None:
        return on_wholes(torch.gather, input, dim, index, **kwargs)
    return TileTensor.wrap(torch.gather(held_part(input, spec), dim, held_part(index, spec), **kwargs), spec)


@rule(torch.take_along_dim, Tensor.take_along_dim)
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None, **kwargs: Any) -> Tensor:
    """Unlike gather's, the tensors broadcast against each other in the other dims."""
    unwritten(torch.take_along_dim, (input, indices, dim), kwargs)
    if dim is None or input.ndim != indices.ndim:
        return on_wholes(torch.take_along_dim, input, indices, dim)
    dim = from_front(dim, input.ndim)
    indices = torch.where(indices < 0, indices + input.shape[dim], indices)  # unlike gather's, counted from the end
    sizes = [max(a, b) if min(a, b) else 0 for a, b in zip(input.shape, indices.shape)]
    first, second = ([*sizes[:dim], t.shape[dim], *sizes[dim + 1 :]] for t in (input, indices))
    return torch.gather(input.expand(first), dim, indices.expand(second))


def _listed(*functions: Callable[..., Any]) -> None:
    """Register functions that list or count what they choose among all pixels."""
    for function in functions:

        def choose(*args: Any, _function: Callable[..., Any] = function, **kwargs: Any) -> Any:
            unwritten(_function, args, kwargs)
            return on_wholes(_function, *args, **kwargs)

        rule(function)(choose)


_listed(torch.masked_select, Tensor.masked_select, torch.take, Tensor.take)
_listed(torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere)
_listed(torch.unique, Tensor.unique, torch.unique_consecutive, Tensor.unique_consecutive)


def _where(function: Callable[..., Any]) -> None:
    by_pixel = nary(function, in_place=False)

    @rule(function)
    def where(*args: Any, **kwargs: Any) -> Any:
        """Of one or the other tensor, pixel by pixel; of a condition alone, the list of pixels where it holds."""
        return on_wholes(function, *args, **kwargs) if len(args) + len(kwargs) == 1 else by_pixel(*args, **kwargs)


_where(torch.where)
_where(Tensor.where)
