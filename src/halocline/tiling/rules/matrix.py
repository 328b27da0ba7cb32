"""Products, and what sees the last dims as a matrix: triangles, diagonals, distances, covariance.

A product is local while the summed dim is not cut (a channels-last linear layer, einsum over channels); one that sums
over pixels gathers its tiles and is whole on every rank. Triangles keep each pixel or make it zero, by its coordinates.
A diagonal of pixels is gathered and plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.plain import all_for_tiles, for_tiles
from halocline.tiling.rules.elementwise import align, named
from halocline.tiling.rules.gathered import cut_again, cut_within, of_wholes, on_wholes, view_of, whole
from halocline.tiling.rules.shape import at, from_front
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import laid_out, memory_order, strides_in
from halocline.tiling.tensor import TileTensor, find_tiles, rule, rules, untiled


@rule(F.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if isinstance(input, TileTensor) and not isinstance(weight, TileTensor) and not isinstance(bias, TileTensor):
        if -1 not in input.spec.dims:
            spec = input.spec
            out = F.linear(input.local, *all_for_tiles((weight, bias), spec.exchanger))
            return TileTensor.wrap(out, spec if weight.ndim == 2 else at(spec, spec.positions(input.ndim), out.ndim))
    return F.linear(whole(input), whole(weight), whole(bias))


@rule(torch.matmul, Tensor.matmul, Tensor.__matmul__)
def matmul(input: Tensor, other: Tensor) -> Tensor:
    if isinstance(input, TileTensor) and not isinstance(other, TileTensor):
        if other.ndim <= 2 and -1 not in input.spec.dims:
            out = torch.matmul(input.local, for_tiles(other, input.spec.exchanger))
            return TileTensor.wrap(out, at(input.spec, input.spec.positions(input.ndim), out.ndim))
    return torch.matmul(whole(input), whole(other))


rule(Tensor.__rmatmul__)(lambda input, other: matmul(other, input))


of_wholes(*named("mm bmm mv dot vdot inner ger outer addmm addmv baddbmm addbmm tensordot cdist", torch, Tensor))


@rule(torch.einsum, torch.functional.einsum)
def einsum(equation: Any, *operands: Any) -> Tensor:
    listed = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    if not isinstance(equation, str):
        raise untiled(torch.einsum, (equation, *operands), why="give the equation as a string")
    local = _pixelwise(equation.replace(" ", ""), listed)
    return torch.einsum(equation, *map(whole, listed)) if local is None else local


def _pixelwise(equation: str, operands: list[Any]) -> TileTensor | None:
    """The einsum computed on each tile by itself, if every cut dim is in all tiles, in the result and not elsewhere."""
    given, arrow, result = equation.partition("->")
    terms = given.split(",")
    if not arrow or "." in equation or len(terms) != len(operands):
        return None
    tiles = [(t, o) for t, o in zip(terms, operands) if isinstance(o, TileTensor)]
    cut = [[term[d] for d in o.spec.dims] for term, o in tiles]
    letters = cut[0]
    if any(c != letters for c in cut) or len(set(letters)) < len(letters):
        return None
    plain = "".join(t for t, o in zip(terms, operands) if not isinstance(o, TileTensor))
    if any(c not in result or c in plain or any(t.count(c) > 1 for t, _ in tiles) for c in letters):
        return None
    lead = tiles[0][1].spec
    if any(o.spec.size != lead.size or o.spec.exchanger is not lead.exchanger for _, o in tiles):
        return None
    same = [o for _, o in tiles]
    if len(same) > 1:
        lead = lead.without_margin()
        same = [o.retiled(lead.with_dims(o.spec.dims)) for o in same]
    parts = iter(same)
    local = [next(parts).local if isinstance(o, TileTensor) else for_tiles(o, lead.exchanger) for o in operands]
    spec = at(lead, [result.index(c) for c in letters], len(result))
    return TileTensor.wrap(_laid_out(torch.einsum(equation, *local), equation, local, operands, lead), spec)


def _laid_out(out: Tensor, equation: str, local: list[Tensor], operands: list[Any], spec: TileSpec) -> Tensor:
    """The same, lying in memory as the whole on one device does, which a tile of one pixel need not."""
    if all(b - a > 1 or n == 1 for (a, b), n in zip(spec.held, spec.size)):
        return out
    sizes = [tuple(o.shape) for o in operands]
    meta = [
        torch.empty_strided(n, strides_in(memory_order(p), n), dtype=p.dtype, device="meta")
        for n, p in zip(sizes, local)
    ]
    strides = strides_in(memory_order(torch.einsum(equation, *meta)), tuple(out.shape))
    return laid_out(out, strides)


# ------------------------------------------------------------------------------------------- triangles and diagonals


@rules(named("triu tril triu_ tril_"))
def triangle(function: Callable[..., Tensor], input: TileTensor, diagonal: int = 0) -> TileTensor:
    held = dict(zip(input.spec.dims, input.spec.held))
    (row, _), (column, _) = held.get(-2, (0, 0)), held.get(-1, (0, 0))
    out = function(input.local, diagonal + row - column)  # the whole image's, counted from the first pixel held
    return input if out is input.local else TileTensor.wrap(out, input.spec)


@rule(torch.diagonal, Tensor.diagonal)
def diagonal(input: TileTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """It becomes the last dim."""
    ndim = input.ndim
    gone = {from_front(dim1, ndim), from_front(dim2, ndim)}
    spatial = input.spec.positions(ndim)
    if gone.intersection(spatial):
        return view_of(input, torch.diagonal, offset, dim1, dim2)
    kept = [d for d in range(ndim) if d not in gone]
    out = torch.diagonal(input.local, offset, dim1, dim2)
    return TileTensor.wrap(out, at(input.spec, [kept.index(p) for p in spatial], ndim - 1))


rule(torch.linalg.diagonal)(lambda A, *, offset=0, dim1=-2, dim2=-1: diagonal(A, offset, dim1, dim2))


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


of_wholes(*named("trace diag cov corrcoef", torch, Tensor))


@rule(torch.cross, Tensor.cross)
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    shape = torch.broadcast_shapes(tuple(input.shape), tuple(other.shape))
    if dim is None:  # the first dim of three
        dim = next((d for d, n in enumerate(shape) if n == 3), -1)
    dim = from_front(dim, len(shape)) - len(shape)
    tiles = find_tiles((input, other))
    if any(cut_within(t, dim) for t in tiles):
        lead = next((t for t in tiles if tuple(t.shape) == tuple(shape)), None)
        out = on_wholes(torch.linalg.cross, input, other, dim=dim)
        return out if lead is None else cut_again(out, lead.spec)
    (first, second), spec = align((input, other), torch.cross)
    return TileTensor.wrap(torch.linalg.cross(first, second, dim=dim), spec)


rule(torch.linalg.cross)(lambda input, other, *, dim=-1: cross(input, other, dim))


@rule(torch.renorm, Tensor.renorm)
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Each slice along `dim` is made no longer than `maxnorm`, by torch's formula."""
    dim = from_front(dim, input.ndim)
    others = tuple(d for d in range(input.ndim) if d != dim)
    norms = torch.linalg.vector_norm(input, p, others, keepdim=True)
    return (input * torch.where(norms > maxnorm, maxnorm / (norms + 1e-7), torch.ones_like(norms))).contiguous()


# ------------------------------------------------------------------------------------------------------- distances


rule(torch.linalg.vecdot)(lambda x, y, *, dim=-1: (torch.conj(x) * y).sum(dim))
rule(torch.dist, Tensor.dist)(lambda input, other, p=2: torch.linalg.vector_norm(input - other, p))


@rule(F.pairwise_distance, torch.pairwise_distance)
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """Between vectors along the last dim."""
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)
