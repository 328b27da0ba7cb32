"""Products with matrices: local while the summed dim is not cut (a channels-last linear layer, einsum over channels).

A product that sums over pixels gathers its tiles and is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.plain import all_for_tiles, for_tiles
from halocline.tiling.rules.gathered import whole
from halocline.tiling.rules.shape import at
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import memory_order, strides_in
from halocline.tiling.tensor import TileTensor, rule, untiled


@rule(F.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if isinstance(input, TileTensor) and not isinstance(weight, TileTensor) and not isinstance(bias, TileTensor):
        if -1 not in input.spec.dims:
            spec = input.spec
            out = F.linear(input.local, *all_for_tiles((weight, bias), spec.exchanger))
            return TileTensor.wrap(out, spec if weight.ndim == 2 else at(spec, spec.positions(input.ndim), out.ndim))
    return F.linear(whole(input), whole(weight), whole(bias))


def _matmul(function: Callable[..., Any], swapped: bool = False) -> None:
    @rule(function)
    def matmul(input: Tensor, other: Tensor) -> Tensor:
        a, b = (other, input) if swapped else (input, other)
        if isinstance(a, TileTensor) and not isinstance(b, TileTensor) and b.ndim <= 2 and -1 not in a.spec.dims:
            out = torch.matmul(a.local, for_tiles(b, a.spec.exchanger))
            return TileTensor.wrap(out, at(a.spec, a.spec.positions(a.ndim), out.ndim))
        return torch.matmul(whole(a), whole(b))


for _function in (torch.matmul, Tensor.matmul, Tensor.__matmul__):
    _matmul(_function)
_matmul(Tensor.__rmatmul__, swapped=True)


def _gathered(function: Callable[..., Any]) -> None:
    @rule(function)
    def product(*args: Any, **kwargs: Any) -> Tensor:
        return function(*map(whole, args), **{name: whole(value) for name, value in kwargs.items()})


for _name in "mm bmm mv dot vdot inner ger outer addmm addmv baddbmm addbmm tensordot cdist".split():
    for _space in (torch, Tensor):
        if hasattr(_space, _name):
            _gathered(getattr(_space, _name))


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
    if out.stride() == strides:
        return out
    return torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device).copy_(out)


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
