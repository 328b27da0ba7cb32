"""Running an operator whose outputs each read a window of pixels: fetch the halo, pad at the image's border, compute.

Knows geometry and routes; the arithmetic is the `LocalOperator`'s.

For the backward it keeps the tile as its producer made it (the same storage) and the received strips, never the padded
input: that is rebuilt when its gradient is due. So a tile saves no more than one device's share of the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from halocline.tiling.boxes import Reach, shape, slices
from halocline.tiling.geometry import Geometry, geometry
from halocline.tiling.halo import assembly, halo_route
from halocline.tiling.overlapping import POLICY, Policy, Split, now, pays_in_backward, split, trial, worth_trying
from halocline.tiling.route import Route, empty_as, index
from halocline.tiling.tensor import TileTensor

Grads = Sequence[Tensor | None]


class LocalOperator(Protocol):
    """What runs on one rank, on plain tensors: from the padded input box to the output box."""

    def forward(self, padded: Tensor, where: Geometry, params: Sequence[Tensor | None]) -> Tensor:
        """The output over `where.out_box`, from the input over `where.padded`. Differentiable by autograd.

        The operator still has to add `where.padding` on both sides of each dim.
        """

    def backward(
        self, grad: Tensor, padded: Tensor, where: Geometry, params: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Grads:
        """The gradients of the padded input and of each parameter, where `wanted`."""

    def channels(self, params: Sequence[Tensor | None], given: int) -> int:
        """The number of output channels, from the parameters and the input's channels."""


class Recomputed:
    """A LocalOperator from a function that is cheap enough to run once more in the backward (pooling, resampling).

    Nothing but the tile is kept for the backward; a parameter's gradient is not needed.
    """

    def __init__(self, function: Callable[[Tensor, Geometry], Tensor]) -> None:
        self.function = function

    def forward(self, padded: Tensor, where: Geometry, params: Sequence[Tensor | None]) -> Tensor:
        return self.function(padded, where)

    def backward(
        self, grad: Tensor, padded: Tensor, where: Geometry, params: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Grads:
        with torch.enable_grad():
            padded = padded.detach().requires_grad_()
            out = self.function(padded, where)
        return torch.autograd.grad(out, padded, grad)

    def channels(self, params: Sequence[Tensor | None], given: int) -> int:
        return given


def windowed(
    x: TileTensor,
    reaches: tuple[Reach, ...],
    operator: LocalOperator,
    params: Sequence[Tensor | None] = (),
    fill: float = 0.0,
    own_padding: bool = True,
) -> TileTensor:
    """Run `operator`, whose outputs depend on the pixels of `x` by one reach per spatial dim.

    `fill` is the value of padding pixels outside the image; with `own_padding` the operator adds equal padding itself.
    """
    where = geometry(x.spec, reaches, own_padding)
    if where.plain:
        return TileTensor.wrap(operator.forward(x.local, where, params), where.out)
    task = Task(where, reaches, operator, fill, POLICY())
    return TileTensor.wrap(_Windowed.apply(x.local, task, *params), where.out)


@dataclass(frozen=True)
class Task:
    """All of a call but its tensors."""

    where: Geometry
    reaches: tuple[Reach, ...]
    operator: LocalOperator
    fill: float
    policy: Policy


def _compute(task: Task, source: Tensor, params: Sequence[Tensor | None]) -> tuple[Tensor, list[Tensor]]:
    """The output over `out_box`, and the strips that were received for it."""
    where = task.where
    way = halo_route(where)
    if not where.exchange:
        return _from_all(task, way, source, [], params), []
    parts = None if task.policy == "never" else split(where, task.reaches)
    if parts is None:
        wait, strips = way.start(source, where.source.exchanger)
        wait()
        return _from_all(task, way, source, strips, params), strips
    if task.policy == "always":
        return _overlapped(task, parts, way, source, params)
    shapes = tuple(source.shape), *(tuple(p.shape) for p in params if p is not None)
    found = trial(where, (task.operator, source.dtype, *shapes))
    started = 0.0
    if found.winner is None:
        size = way.resize(source, shape(where.out_box))
        if not worth_trying(parts, prod(size)):
            found.winner = False
        else:
            started = now(source)
    overlapped = found.next()
    if overlapped:
        out, strips = _overlapped(task, parts, way, source, params)
    else:
        wait, strips = way.start(source, where.source.exchanger)
        wait()
        out = _from_all(task, way, source, strips, params)
    if started:
        found.add(overlapped, now(source) - started)
    return out, strips


def _from_all(
    task: Task, way: Route, source: Tensor, strips: Sequence[Tensor], params: Sequence[Tensor | None]
) -> Tensor:
    where = task.where
    if where.empty:
        size = way.resize(source, shape(where.out_box))
        channel = source.ndim + way.dims[0] - 1
        size[channel] = task.operator.channels(params, size[channel])
        return source.new_zeros(size)
    return task.operator.forward(_padded(task, way, source, strips), where, params)


def _padded(task: Task, way: Route, source: Tensor, strips: Sequence[Tensor]) -> Tensor:
    return source if way.same else assembly(task.where, task.where.padded).run(source, strips, way, task.fill)


def _overlapped(
    task: Task, parts: Split, way: Route, source: Tensor, params: Sequence[Tensor | None]
) -> tuple[Tensor, list[Tensor]]:
    where, operator = task.where, task.operator
    spec, inner = where.source, parts.interior
    wait, strips = way.start(source, spec.exchanger)
    tile = source if inner.padded == spec.held else source[index(slices(inner.padded, spec.held), way.dims)]
    interior = operator.forward(tile, inner, params)
    out = empty_as(interior, way.resize(interior, shape(where.out_box)))
    out[index(slices(inner.out_box, where.out_box), way.dims)] = interior
    wait()
    for seam in parts.seams:
        box = assembly(where, seam.padded).run(source, strips, way, task.fill)
        out[index(slices(seam.out_box, where.out_box), way.dims)] = operator.forward(box, seam, params)
    return out, strips


class _Windowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, task: Task, *params: Tensor | None) -> Tensor:
        out, strips = _compute(task, source, params)
        ctx.task, ctx.strips = task, len(strips)
        ctx.save_for_backward(source, *strips, *params)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        task: Task = ctx.task
        where, operator = task.where, task.operator
        way = halo_route(where)
        source, *rest = ctx.saved_tensors
        strips, params = rest[: ctx.strips], rest[ctx.strips :]
        wanted = (ctx.needs_input_grad[0], *ctx.needs_input_grad[2:])
        grads: list[Tensor | None]
        returning = wanted[0] and where.exchange
        # The halo's gradients travel while those of the parameters are computed.
        later = returning and any(wanted[1:]) and not where.empty and pays_in_backward(task.policy, grad)
        padded = None
        if where.empty:
            grads = [source.new_zeros(way.resize(source, way.target))]
            grads += [torch.zeros_like(p) if p is not None and w else None for p, w in zip(params, wanted[1:])]
        else:
            padded = _padded(task, way, source, strips)
            first = (True, *(False for _ in params)) if later else wanted
            grads = list(operator.backward(grad, padded, where, params, first))
        grad_source = None
        if wanted[0]:
            grad_padded = grads[0]
            assert grad_padded is not None
            returned: list[Tensor] = []
            if where.exchange:
                wait, returned = way.start_back(grad_padded, where.source.exchanger)
                if later:
                    assert padded is not None
                    grads[1:] = operator.backward(grad, padded, where, params, (False, *wanted[1:]))[1:]
                wait()
            grad_source = way.accumulate(grad_padded, shape(where.source.held), returned)
        return grad_source, None, *grads[1:]
