"""Between tiles and plain tensors: the ways from what ranks hold in parts to what every rank has whole, and back.

A plain tensor is equal on every rank, and so is its gradient; a tile's gradient is that of the pixels held here. So
each way in is the backward of a way out:

    parts of a sum -- all_sum --> plain        plain -- for_tiles --> parts of a sum
    pixels held ---- gather ---> plain        plain -- cut --------> pixels held

Plain tensors that meet only plain tensors need nothing: a head after pooling, a loss, a hook see what one device has.
Knows specs and routes; no operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from halocline.tiling.boxes import Interval, slices
from halocline.tiling.exchanger import Exchanger
from halocline.tiling.function import Function
from halocline.tiling.route import index, move
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import alias, held_strides, laid_out, memory_order, noted
from halocline.tiling.view import GatheredView


class _Part(NamedTuple):
    """What a rank has of a gradient, and what it would be like if it has nothing."""

    grad: Tensor | None
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def whole(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device) if self.grad is None else self.grad


class _AllSum(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, exchanger: Exchanger) -> Tensor:
        ctx.exchanger = exchanger
        return exchanger.all_reduce(part.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _as_parts(grad, ctx.exchanger), None


class _ForTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchanger: Exchanger, *plain: Tensor) -> tuple[Tensor, ...]:
        ctx.exchanger = exchanger
        ctx.set_materialize_grads(False)  # a parameter that one device gives no gradient gets none here, not zeros
        ctx.leaves = plain if all(p.is_leaf for p in plain) else ()
        ctx.kinds = [(p.shape, p.dtype, p.device) for p in plain]
        return tuple(alias(p) for p in plain)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        exchanger, put_off = ctx.exchanger, ctx.exchanger.put_off
        wanted = ctx.needs_input_grad[1:]
        if put_off is not None and ctx.leaves and not any(map(_hooked, ctx.leaves)) and not _asked(ctx):
            for leaf, grad, asked in zip(ctx.leaves, grads, wanted):
                if asked and grad is not None:
                    put_off[leaf] = put_off[leaf].add_(grad) if leaf in put_off else grad.clone()
            return None, *(None,) * len(grads)
        parts = [
            _Part(grad, *kind) if grad is None else _Part(grad, grad.shape, grad.dtype, grad.device)
            for grad, kind, asked in zip(grads, ctx.kinds, wanted)
            if asked
        ]
        sums = iter(_sums(parts, exchanger))
        return None, *(next(sums) if asked else None for asked in wanted)


_apply_for_tiles = super(_SingleLevelFunction, _ForTiles).apply  # type: ignore[misc]
"""Called for every parameter of every operator: past what Function.apply asks of functions that are not ours."""


def _asked(ctx: Any) -> bool:
    """Whether torch.autograd.grad wants the gradients of leaves, which are then not accumulated: now, and whole."""
    return any(_goes_on(node) is None for node, _ in ctx.next_functions if node is not None)


def _goes_on(node: Any) -> bool | None:
    """Whether the backward that runs goes on at a node; None where it ends there, at a leaf that is asked for."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # so torch says it
        return None


def wanted(ctx: Any) -> tuple[bool, ...]:
    """Which of its gradients a function's backward is asked for now: half a backward asks for some of them."""
    nodes = (node for node, _ in ctx.next_functions if node is not None)
    return tuple(needed and _goes_on(next(nodes)) is not False for needed in ctx.needs_input_grad)


def _hooked(leaf: Tensor) -> bool:
    """Whether somebody wants to see the gradient of a leaf as it arrives."""
    return bool(leaf._backward_hooks or leaf._post_accumulate_grad_hooks)


def _sums(parts: Sequence[_Part], exchanger: Exchanger) -> Sequence[Tensor | None]:
    """The sums over ranks of each rank's parts: one message for those of one dtype; differentiable.

    The first numbers of a message say who has a part at all: what no rank has stays None, and a rank that holds no
    pixels may have one where others have none, or the other way round.
    """
    if len({part.dtype for part in parts}) > 1:
        return [total for part in parts for total in _sums([part], exchanger)]
    if any(part.grad is not None and part.grad.is_sparse for part in parts):
        return [_rows_sum(part.grad, exchanger) for part in parts if part.grad is not None]
    present = [part.grad is not None for part in parts]
    _, _, dtype, device = parts[0]
    said = torch.ones(len(parts), dtype=dtype, device=device)
    for i, has in enumerate(present):
        if not has:
            said[i] = 0
    flat = all_sum(torch.cat([said, *(part.whole.reshape(-1) for part in parts)]), exchanger)
    said, *totals = flat.split([len(parts), *(part.shape.numel() for part in parts)])
    used = present if all(present) else (said.detach().abs() > 0).tolist()
    return [total.view(part.shape) if some else None for total, part, some in zip(totals, parts, used)]


def _rows_sum(part: Tensor, exchanger: Exchanger) -> Tensor:
    """The sum of sparse gradients, as an embedding's: of the rows that any rank has, as one device has them."""
    part = part.coalesce()
    rows = part.indices()[0]
    dense, used = part.to_dense(), part.values().new_zeros(part.shape[0]).index_fill_(0, rows, 1)
    found = exchanger.all_reduce(used).nonzero().T
    values = exchanger.all_reduce(dense)[found[0]]
    return torch.ops.aten._sparse_coo_tensor_unsafe(found, values, part.shape)  # they are as they should be


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, spec: TileSpec) -> Tensor:
        ctx.spec = spec
        whole = tuple((0, n) for n in spec.size)
        out = move(local, spec.own, (whole,) * spec.exchanger.size, spec.exchanger, spec.dims, spec.held)
        return out.clone() if out is local or out._is_view() else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        spec = ctx.spec
        return owned_among_zeros(cut(grad, spec.without_margin()), spec), None


class _Cut(Function):
    @staticmethod
    def forward(ctx: Any, plain: Tensor, spec: TileSpec) -> Tensor:
        ctx.spec = spec
        part = plain[index(slices(spec.box, tuple((0, n) for n in spec.size)), spec.dims)]
        # A copy, so that the whole need not stay in memory for the sake of one tile of it.
        strides = held_strides(memory_order(plain), tuple(part.shape))
        return laid_out(part.clone(memory_format=torch.preserve_format), strides)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gather(grad, ctx.spec), None


def among_zeros(part: Tensor, dims: Sequence[int], box: Sequence[Interval], around: Sequence[Interval]) -> Tensor:
    """The pixels of a box, which lie along `dims` (negative), among zeros for the box around it."""
    pads = [0] * (2 * -min(dims, default=0))
    for dim, (a, b), (start, stop) in zip(dims, box, around):
        pads[-2 * dim - 2], pads[-2 * dim - 1] = a - start, stop - b
    return F.pad(part, pads)


def owned_among_zeros(owned: Tensor, spec: TileSpec) -> Tensor:
    """Owned pixels, with zeros for the margin."""
    return owned if spec.bare else among_zeros(owned, spec.dims, spec.box, spec.held)


def all_sum(part: Tensor, exchanger: Exchanger) -> Tensor:
    """The sum of what each rank has, plain."""
    return part if exchanger.size == 1 else _AllSum.apply(part, exchanger)


def for_tiles(plain: Tensor, exchanger: Exchanger) -> Tensor:
    """A plain tensor, as it is used on what each rank holds of a tile: its gradient is the sum of what ranks find.

    Call it before anything of the same operator that exchanges: ranks then meet in one order in the backward, whatever
    way each of them computes. Where sums are put off (see Exchanger) a parameter's gradient is kept apart instead.
    """
    return all_for_tiles((plain,), exchanger)[0]


def all_for_tiles(plain: Sequence[Any], exchanger: Exchanger) -> tuple[Any, ...]:
    """The same of the tensors among several arguments; their gradients are summed in one message."""
    exchanger = exchanger.everyone
    if exchanger.size == 1 or not torch.is_grad_enabled():
        return tuple(plain)
    moving = [
        p._plain if isinstance(p, GatheredView) else p for p in plain if isinstance(p, Tensor) and p.requires_grad
    ]
    if not moving:
        return tuple(plain)
    seen = iter(_apply_for_tiles(exchanger, *(p._plain if isinstance(p, GatheredView) else p for p in moving)))
    return tuple(next(seen) if isinstance(p, Tensor) and p.requires_grad else p for p in plain)


def _as_parts(plain: Tensor, exchanger: Exchanger) -> Tensor:
    """A whole gradient as the gradient of each rank's part."""
    return _ForTiles.apply(exchanger, plain)[0] if plain.requires_grad and torch.is_grad_enabled() else plain


def gather(local: Tensor, spec: TileSpec) -> Tensor:
    """The whole of a tile (what is held of it, and its TileSpec), plain."""
    return local if spec.exchanger.size == 1 else _Gather.apply(local, spec)


def cut(plain: Tensor, spec: TileSpec) -> Tensor:
    """What this rank owns of a plain tensor of the whole size; nobody holds a margin. A copy."""
    return noted(_Cut.apply(plain, spec), memory_order(plain))
