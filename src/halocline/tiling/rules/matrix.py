"""What sees the last dims as a matrix or a dim as a vector: triangles, diagonals, products, distances, covariance.

Triangles keep each pixel or make it zero, by its coordinates. A diagonal of pixels is gathered and plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.rules.elementwise import align
from halocline.tiling.rules.gathered import cut_within, on_wholes, view_of
from halocline.tiling.rules.gathered import cut_again
from halocline.tiling.rules.shape import at, from_front
from halocline.tiling.tensor import TileTensor, find_tiles, rule, untiled


def _triangle(name: str) -> None:
    function: Callable[..., Tensor] = getattr(torch, name)

    @rule(function, getattr(Tensor, name))
    def triangle(input: TileTensor, diagonal: int = 0, **kwargs: Any) -> TileTensor:
        if kwargs:
            raise untiled(function, (input, diagonal), kwargs, why="out= has no rule; assign the result instead")
        return TileTensor.wrap(function(input.local, _from_corner(input, diagonal)), input.spec)

    @rule(getattr(Tensor, name + "_"))
    def write(input: TileTensor, diagonal: int = 0) -> TileTensor:
        getattr(input.local, name + "_")(_from_corner(input, diagonal))
        return input


def _from_corner(input: TileTensor, diagonal: int) -> int:
    """The whole image's diagonal, counted from the first pixel held."""
    held = dict(zip(input.spec.dims, input.spec.held))
    (row, _), (column, _) = held.get(-2, (0, 0)), held.get(-1, (0, 0))
    return diagonal + row - column


_triangle("triu")
_triangle("tril")


def _diagonal(functions: tuple[Callable[..., Any], ...], usual: tuple[int, int]) -> None:
    @rule(*functions)
    def diagonal(
        input: TileTensor, offset: int = 0, dim1: int = usual[0], dim2: int = usual[1], **kwargs: Any
    ) -> Tensor:
        """It becomes the last dim."""
        offset = kwargs.get("offset", offset)
        ndim = input.ndim
        gone = {from_front(dim1, ndim), from_front(dim2, ndim)}
        spatial = input.spec.positions(ndim)
        if gone.intersection(spatial):
            return view_of(input, torch.diagonal, offset, dim1, dim2)
        kept = [d for d in range(ndim) if d not in gone]
        out = torch.diagonal(input.local, offset, dim1, dim2)
        return TileTensor.wrap(out, at(input.spec, [kept.index(p) for p in spatial], ndim - 1))


_diagonal((torch.diagonal, Tensor.diagonal), (0, 1))
_diagonal((torch.linalg.diagonal,), (-2, -1))


@rule(torch.diag_embed, Tensor.diag_embed)
def diag_embed(input: TileTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last dim becomes a diagonal of two."""
    ndim = input.ndim + 1
    if -1 in input.spec.dims:
        return torch.diag_embed(input.full(), offset, dim1, dim2)
    new = {from_front(dim1, ndim), from_front(dim2, ndim)}
    kept = [d for d in range(ndim) if d not in new]
    out = torch.diag_embed(input.local, offset, dim1, dim2)
    return TileTensor.wrap(out, at(input.spec, [kept[p] for p in input.spec.positions(ndim - 1)], ndim))


def _of_whole(function: Callable[..., Any]) -> None:
    @rule(function)
    def of_whole(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("out") is not None:
            raise untiled(function, (input, *args), kwargs, why="out= has no rule; assign the result instead")
        return on_wholes(function, input, *args, **kwargs)


for _name in "trace diag cov corrcoef".split():
    for _space in (torch, Tensor):
        _of_whole(getattr(_space, _name))


def _cross(functions: tuple[Callable[..., Any], ...], usual: int | None) -> None:
    function = functions[0]

    @rule(*functions)
    def cross(input: Tensor, other: Tensor, dim: int | None = usual, **kwargs: Any) -> Tensor:
        if kwargs.get("out") is not None:
            raise untiled(function, (input, other), kwargs, why="out= has no rule; assign the result instead")
        shape = torch.broadcast_shapes(tuple(input.shape), tuple(other.shape))
        if dim is None:  # the first dim of three
            dim = next((d for d, n in enumerate(shape) if n == 3), -1)
        dim = from_front(dim, len(shape)) - len(shape)
        tiles = find_tiles((input, other))
        if any(cut_within(t, dim) for t in tiles):
            lead = next((t for t in tiles if tuple(t.shape) == tuple(shape)), None)
            out = on_wholes(torch.linalg.cross, input, other, dim=dim)
            return out if lead is None else cut_again(out, lead.spec)
        (first, second), spec = align((input, other), function)
        return TileTensor.wrap(torch.linalg.cross(first, second, dim=dim), spec)


_cross((torch.cross, Tensor.cross), None)
_cross((torch.linalg.cross,), -1)


@rule(torch.renorm, Tensor.renorm)
def renorm(input: Tensor, p: float, dim: int, maxnorm: float, **kwargs: Any) -> Tensor:
    """Each slice along `dim` is made no longer than `maxnorm`, by torch's formula."""
    if kwargs:
        raise untiled(torch.renorm, (input, p, dim), kwargs, why="out= has no rule; assign the result instead")
    dim = from_front(dim, input.ndim)
    others = tuple(d for d in range(input.ndim) if d != dim)
    norms = torch.linalg.vector_norm(input, p, others, keepdim=True)
    return (input * torch.where(norms > maxnorm, maxnorm / (norms + 1e-7), torch.ones_like(norms))).contiguous()


# ------------------------------------------------------------------------------------------------------- distances


@rule(torch.linalg.vecdot)
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1, **kwargs: Any) -> Tensor:
    if kwargs:
        raise untiled(torch.linalg.vecdot, (x, y), kwargs, why="out= has no rule; assign the result instead")
    return (torch.conj(x) * y).sum(dim)


@rule(torch.dist, Tensor.dist)
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    return torch.linalg.vector_norm(input - other, p)


@rule(F.pairwise_distance, torch.pairwise_distance)
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """Between vectors along the last dim."""
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)
