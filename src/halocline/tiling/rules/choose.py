"""Values chosen by other values, to read (gather, take, nonzero, unique, embedding) and to write (scatter, index_add,
index_put, masked_scatter).

Chosen within each pixel (a class per pixel) they stay tiles. What chooses among pixels is computed on the whole image:
read, it is a plain tensor; written, each rank keeps its part. An index, mask or source may be a tile, or plain and of
the whole image's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.plain import for_tiles
from halocline.tiling.rules.elementwise import named, nary, part_of, works_in_place
from halocline.tiling.rules.gathered import cut_again, held_part, of_wholes, on_wholes, whole
from halocline.tiling.rules.shape import from_front
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, find_tiles, rule, rules, untiled


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


@rule(torch.gather, Tensor.gather)
def gather(input: Tensor, dim: int, index: Tensor, **kwargs: Any) -> Tensor:
    spec = within_pixels((input, index), dim)
    if spec is None:
        return on_wholes(torch.gather, input, dim, index, **kwargs)
    return TileTensor.wrap(torch.gather(held_part(input, spec), dim, held_part(index, spec), **kwargs), spec)


@rule(torch.take_along_dim, Tensor.take_along_dim)
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Unlike gather's, the tensors broadcast against each other in the other dims."""
    if dim is None or input.ndim != indices.ndim:
        return on_wholes(torch.take_along_dim, input, indices, dim)
    dim = from_front(dim, input.ndim)
    indices = torch.where(indices < 0, indices + input.shape[dim], indices)  # unlike gather's, counted from the end
    sizes = [max(a, b) if min(a, b) else 0 for a, b in zip(input.shape, indices.shape)]
    first, second = ([*sizes[:dim], t.shape[dim], *sizes[dim + 1 :]] for t in (input, indices))
    return torch.gather(input.expand(first), dim, indices.expand(second))


of_wholes(*named("masked_select take nonzero argwhere unique unique_consecutive", torch, Tensor))


_by_pixel = {function: nary(function, in_place=False) for function in (torch.where, Tensor.where)}


@rules(_by_pixel)
def where(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Of one or the other tensor, pixel by pixel; of a condition alone, the list of pixels where it holds."""
    if len(args) + len(kwargs) == 1:
        return on_wholes(function, *args, **kwargs)
    return _by_pixel[function](*args, **kwargs)


@rule(F.embedding)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TileTensor:
    """A vector per pixel of a map of numbers: its values become a new last dim."""
    if not isinstance(input, TileTensor) or isinstance(weight, TileTensor):
        raise untiled(F.embedding, (input, weight), why="a table of embeddings cannot be cut into tiles")
    if max_norm is not None:
        raise untiled(F.embedding, (input, weight), why="max_norm rewrites the rows that one tile uses")
    if scale_grad_by_freq:
        raise untiled(F.embedding, (input, weight), why="scale_grad_by_freq would count the pixels of one tile")
    out = F.embedding(input.local, for_tiles(weight, input.spec.exchanger), padding_idx, sparse=sparse)
    return TileTensor.wrap(out, input.spec.with_dims(tuple(d - 1 for d in input.spec.dims)))


@rule(F.one_hot)
def one_hot(input: TileTensor, num_classes: int = -1) -> TileTensor:
    if num_classes < 0:
        raise untiled(F.one_hot, (input, num_classes), why="the number of classes would be that of one tile; give it")
    spec = input.spec.with_dims(tuple(d - 1 for d in input.spec.dims))
    local = input.local
    out = F.one_hot(local, num_classes) if local.numel() else local.new_zeros(*local.shape, num_classes)
    return TileTensor.wrap(out, spec)


# ------------------------------------------------------------------------------------------------------------- writing


@rules(named("index_put index_put_ put put_ masked_scatter masked_scatter_"))
@rules(named("select_scatter slice_scatter diagonal_scatter"))
def written_whole(function: Callable[..., Any], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`function`, which writes into its first argument or into a copy of it, on whole tensors."""
    if not isinstance(input, TileTensor):
        return on_wholes(function, input, *args, **kwargs)
    out = on_wholes(function, input.full().clone(), *args, **kwargs)
    if works_in_place(function):
        input.local.copy_(part_of(out, input.spec))
        return input
    return cut_again(out, input.spec) if out.shape == input.shape else out


@rules(named("scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_"))
def scatter(
    function: Callable[..., Any], input: Tensor, dim: int, index: Tensor, source: Any, *args: Any, **kwargs: Any
) -> Tensor:
    """A source is a tensor like the index, or a number."""
    tensors = (input, index, source) if isinstance(source, Tensor) else (input, index)
    in_place = works_in_place(function)
    spec = None if in_place and not isinstance(input, TileTensor) else within_pixels(tensors, dim)
    if spec is None:
        return written_whole(function, input, dim, index, source, *args, **kwargs)
    held, chosen, *values = (held_part(t, spec) for t in tensors)
    out = function(held, dim, chosen, *(values or [source]), *args, **kwargs)
    return input if in_place else TileTensor.wrap(out, spec)


@rules(named("index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_reduce index_reduce_"))
def indexed(
    function: Callable[..., Any], input: Tensor, dim: int, index: Tensor, source: Any, *args: Any, **kwargs: Any
) -> Tensor:
    """A list of places along one dim, and what is written to all pixels there: a tensor like the input, or a number."""
    number = not isinstance(source, Tensor) or source.ndim == 0
    spec = within_pixels((input,) if number else (input, source), dim) if isinstance(input, TileTensor) else None
    if spec is None or (number and isinstance(source, TileTensor)):
        return written_whole(function, input, dim, index, source, *args, **kwargs)
    assert isinstance(input, TileTensor)
    if isinstance(source, Tensor):
        source = for_tiles(source, spec.exchanger) if number else held_part(source, spec)
    out = function(input.local, from_front(dim, input.ndim), whole(index), source, *args, **kwargs)
    return input if works_in_place(function) else TileTensor.wrap(out, spec)
