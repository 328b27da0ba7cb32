"""Running an operator whose outputs each read a window of pixels: fetch the halo, pad at the image's border, compute.

Knows geometry and routes; the arithmetic is the `LocalOperator`'s.

For the backward it keeps the tile as its producer made it (the same storage) and the received strips, not the padded
input: that is rebuilt when its gradient is due. So a tile saves no more than one device's share of the activations.
(Tiles of a few thousand values are the exception: there it is Python's time that counts.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.boxes import Reach, is_empty, shape, slices
from halocline.tiling.exchanger import Wait
from halocline.tiling.function import Function
from halocline.tiling.geometry import Geometry, geometry
from halocline.tiling.halo import assembly, halo_route
from halocline.tiling.local_operator import Grads, Indexed, LocalOperator
from halocline.tiling.overlapping import POLICY, Policy, SplitOutputs, now, split, trial, worth_trying
from halocline.tiling.plain import wanted
from halocline.tiling.route import Return, Route, index
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import alias, empty_as, laid_out, strides_of, suggested_format
from halocline.tiling.tensor import TileTensor, UntiledOperation

SMALL = 1 << 15
"""Values of the largest tile up to which padded copies are kept for the backward after all, and nothing overlaps: that
is faster than making them anew, and so small a copy does not matter. Whatever the policy, since a recomputation must
save alike; and on all ranks alike, since they must meet in one order in a gradient of gradients, too."""

INDEXED_ON = ("cuda",)
"""The types of device on which `Indexed` operators keep indices, eight bytes each. A CPU rather saves the memory."""


def windowed(
    x: TileTensor,
    reaches: tuple[Reach, ...],
    operator: LocalOperator,
    params: Sequence[Tensor | None] = (),
    fill: float = 0.0,
    own_padding: bool = True,
    linear: bool = False,
) -> TileTensor:
    """Run `operator`, whose outputs depend on the pixels of `x` by one reach per spatial dim.

    `fill` is the value of padding pixels outside the image; with `own_padding` the operator adds equal padding itself.
    `linear` says that the outputs are linear in `x` with the first parameter, and that others are only added to them.
    """
    where = geometry(x.spec, reaches, own_padding)
    if where.plain:
        return TileTensor.wrap(operator.forward(x.local, where, params), where.out)
    task = Task(where, reaches, operator, fill, linear, POLICY())
    if _values_of_largest(x.spec, tuple(x.local.shape)) <= SMALL:
        return TileTensor.wrap(_of_padded(task, _Pad.run(x.local, where, fill), params), where.out)
    if isinstance(operator, Indexed) and x.local.device.type in INDEXED_ON and not where.empty:
        return TileTensor.wrap(_Choose.run(x.local, task), where.out)
    return TileTensor.wrap(_Windowed.run(x.local, task, *params), where.out)


@lru_cache(maxsize=4096)
def _values_of_largest(spec: TileSpec, local: tuple[int, ...]) -> int:
    """How many values the rank with most of them holds of a tensor of which this rank holds the shape `local`."""
    others = prod(n for d, n in enumerate(local, start=-len(local)) if d not in spec.dims)
    return others * max(prod(shape(box)) for box in spec.have)


@dataclass(frozen=True)
class Task:
    """All of a call but its tensors."""

    where: Geometry
    reaches: tuple[Reach, ...]
    operator: LocalOperator
    fill: float
    linear: bool
    policy: Policy


def _compute(
    task: Task, source: Tensor, params: Sequence[Tensor | None]
) -> tuple[Tensor, list[Tensor], SplitOutputs | None]:
    """The output over `out_box`, the strips that were received for it, and the split if it was computed in parts."""
    where = task.where
    way = halo_route(where)
    if not where.exchange:
        return _from_all(task, way, source, [], params), [], None
    parts, found, started = None, None, 0.0
    if task.policy == "always":
        parts = split(where, task.reaches)
    elif task.policy == "auto" and where.source.exchanger.travels:
        parts = split(where, task.reaches)
        if parts is not None:
            shapes = tuple(source.shape), *(tuple(p.shape) for p in params if p is not None)
            found = trial(where, (task.operator, source.dtype, *shapes))
            if found.winner is None and not worth_trying(parts):
                found.winner = False
            if found.winner is None:
                started = now(source)
            if not found.next():
                parts = None
    wait, strips = way.start(source, where.source.exchanger)
    if parts is None:
        wait()
        out = _from_all(task, way, source, strips, params)
    else:
        out = task.operator.forward(source, parts.alone, params)
        wait()
        for seam in parts.seams:
            box = assembly(where, seam.padded).run(source, strips, way, task.fill)
            out[index(slices(seam.out_box, where.out_box), way.dims)] = task.operator.forward(box, seam, params)
    if found is not None and started:
        found.add(parts is not None, now(source) - started)
    return out, strips, parts


def _from_all(
    task: Task, way: Route, source: Tensor, strips: Sequence[Tensor], params: Sequence[Tensor | None]
) -> Tensor:
    where = task.where
    if where.empty:
        size = way.resize(source, shape(where.out_box))
        channel = source.ndim + way.dims[0] - 1
        size[channel] = task.operator.channels(params, size[channel])
        strides = strides_of(suggested_format(source), tuple(size))  # where pixels come later, they lie as all do
        return torch.empty_strided(size, strides, dtype=source.dtype, device=source.device).zero_()
    return task.operator.forward(_padded(task, way, source, strips), where, params)


def _of_padded(task: Task, padded: Tensor, params: Sequence[Tensor | None]) -> Tensor:
    """The output over `out_box`, from the padded input. Differentiable; without pixels it still has a graph."""
    if not task.where.empty:
        return task.operator.forward(padded, task.where, params)
    nothing = _from_all(task, halo_route(task.where), alias(padded), [], params)
    ties = [t.flatten()[:0].sum() for t in (padded, *params) if t is not None and t.requires_grad]
    if not ties:
        return nothing  # adding would make a bool a number
    return laid_out(nothing + sum(ties), nothing.stride())


def _fetched(where: Geometry, source: Tensor) -> tuple[Route, list[Tensor]]:
    """The route of the halo, and the strips that came by it."""
    way = halo_route(where)
    if not where.exchange:
        return way, []
    wait, strips = way.start(source, where.source.exchanger)
    wait()
    return way, strips


def _padded(task: Task, way: Route, source: Tensor, strips: Sequence[Tensor]) -> Tensor:
    return source if way.same else assembly(task.where, task.where.padded).run(source, strips, way, task.fill)


class _Pad(Function):
    """The padded input of a small tile; the operator then runs on it as on any tensor."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, where: Geometry, fill: float) -> Tensor:
        ctx.where = where
        way, strips = _fetched(where, source)
        padded = assembly(where, where.padded).run(source, strips, way, fill)
        return alias(padded) if padded is source else padded

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        where = ctx.where
        _require_pixels(where)
        back = Return.run(grad, halo_route(where), where.source.exchanger, shape(where.source.held))
        return back, None, None


def _return_halo(where: Geometry, grad_padded: Tensor) -> Tensor:
    """The gradient of the tile, from that of the padded input: the halo's part goes back to its owners."""
    return halo_route(where).give_back(grad_padded, shape(where.source.held), where.source.exchanger)


class _Windowed(Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, task: Task, *params: Tensor | None) -> Tensor:
        out, strips, parts = _compute(task, source, params)
        if out._is_view():  # of what nothing else sees; autograd would let no activation work on it in place
            out = out.detach()
        ctx.task, ctx.strips, ctx.parts = task, len(strips), parts
        ctx.save_for_backward(source, *strips, *params)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        source, *rest = ctx.saved_tensors
        strips, params = rest[: ctx.strips], rest[ctx.strips :]
        first, _, *others = wanted(ctx)
        asked = (first, *others)
        if torch.is_grad_enabled():
            grads = _backward_with_graph(ctx.task, grad, source, params, asked)
        elif ctx.parts is not None and ctx.task.linear:
            grads = _backward_in_parts(ctx.task, ctx.parts, grad, source, strips, params, asked)
        else:
            grads = _backward(ctx.task, grad, source, strips, params, asked)
        return grads[0], None, *grads[1:]


class _Choose(Function):
    """An `Indexed` operator on a GPU."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, task: Task) -> Tensor:
        assert isinstance(task.operator, Indexed)
        where = task.where
        way, strips = _fetched(where, source)
        out, numbers = task.operator.choose(_padded(task, way, source, strips), where)
        ctx.task = task
        ctx.save_for_backward(source, numbers)  # the source's shape and format count, not its values: see Indexed
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:  # type: ignore[override]
        source, numbers = ctx.saved_tensors
        where = ctx.task.where
        if torch.is_grad_enabled():
            return _backward_with_graph(ctx.task, grad, source, (), (True,))[0], None
        like = empty_as(source, halo_route(where).resize(source, shape(where.padded)))
        return _return_halo(where, ctx.task.operator.give(grad, like, numbers, where)), None


def _require_pixels(where: Geometry) -> None:
    """Refuse a gradient of gradients where some rank computes nothing: ranks would not meet in the same order."""
    if torch.is_grad_enabled() and any(is_empty(where.out.own[rank]) for rank in where.out.ranks):
        raise UntiledOperation(
            f"a gradient of gradients (create_graph=True) through an output of {where.out.size} pixels on a grid of "
            f"{where.out.grid} tiles, some of them empty: use fewer tiles, or gather before (x.full())"
        )


def _backward_with_graph(
    task: Task, grad: Tensor, source: Tensor, params: Sequence[Tensor | None], wanted: Sequence[bool]
) -> Grads:
    """The gradients as functions of all they depend on, for a gradient of gradients: the operator runs once more."""
    _require_pixels(task.where)
    out = _of_padded(task, _Pad.run(source, task.where, task.fill), params)
    asked = [t for t, w in zip((source, *params), wanted) if t is not None and w]
    found = iter(torch.autograd.grad(out, asked, grad, create_graph=True))
    return [next(found) if t is not None and w else None for t, w in zip((source, *params), wanted)]


def _backward(
    task: Task,
    grad: Tensor,
    source: Tensor,
    strips: Sequence[Tensor],
    params: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> Grads:
    """The gradients of the tile and of the parameters, from the padded input."""
    where = task.where
    way = halo_route(where)
    grads: list[Tensor | None]
    if where.empty:
        grads = [source.new_zeros(way.resize(source, way.target))]
        grads += [torch.zeros_like(p) if p is not None and w else None for p, w in zip(params, wanted[1:])]
    else:
        padded = _padded(task, way, source, strips)
        grads = list(task.operator.backward(grad, padded, where, params, wanted))
        del padded
    if wanted[0]:
        grad_padded = grads[0]
        assert grad_padded is not None
        grads[0] = _return_halo(where, grad_padded)
    return grads


def _backward_in_parts(
    task: Task,
    parts: SplitOutputs,
    grad: Tensor,
    source: Tensor,
    strips: Sequence[Tensor],
    params: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> Grads:
    """The same for an operator that is linear in its input, without a padded one.

    What was received is read by the seams only. Its gradients are found first, and travel while the tile's own are
    computed as though there were zeros beyond it; the parameters' gradients are the sum of both parts.
    """
    where, operator = task.where, task.operator
    way = halo_route(where)
    returns = [torch.zeros_like(strip) for strip in way.each(strips, source)]
    extra: list[Tensor | None] = [None] * len(params)
    # A bias is added once per output, which the tile's part counts.
    first = (wanted[0], *(w and i == 0 for i, w in enumerate(wanted[1:])))
    if any(first):
        for seam in parts.seams:
            around = assembly(where, seam.padded)
            part = grad[index(slices(seam.out_box, where.out_box), way.dims)].contiguous()
            found = operator.backward(part, around.halo_alone(source, strips, way), seam, params, first)
            if found[0] is not None:
                around.return_halo(found[0], returns)
            extra = [
                new if old is None else old + new if new is not None else old for old, new in zip(extra, found[1:])
            ]
    wait: Wait | None = None
    returned: list[Tensor] = []
    if wanted[0]:
        wait, returned = way.start_strips_back(returns, source, where.source.exchanger)
    grads = list(operator.backward(grad, source, parts.alone, params, wanted))
    for i, more in enumerate(extra, start=1):
        if more is not None and wanted[i]:
            grads[i] = more if grads[i] is None else grads[i] + more  # type: ignore[operator]
    if wait is not None:
        wait()
        grad_source = grads[0]
        assert grad_source is not None
        way.add(grad_source, returned)
    return grads
