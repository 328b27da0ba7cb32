"""Running an operator whose outputs each read a window of pixels: fetch the halo, pad at the image's border, compute.

Knows geometry and routes; the arithmetic is the `LocalOperator`'s.

For the backward it keeps the tile as its producer made it (the same storage) and the received strips, never the padded
input: that is rebuilt when its gradient is due. So a tile saves no more than one device's share of the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from halocline.tiling.boxes import Reach, shape
from halocline.tiling.geometry import Geometry, border, geometry
from halocline.tiling.route import Route, empty_as, index, route
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
    return TileTensor.wrap(_Windowed.apply(x.local, where, operator, fill, *params), where.out)


def halo_route(where: Geometry) -> Route:
    """How the pixels of the padded input come together on this rank."""
    spec = where.source
    owned = spec.own if where.exchange else spec.have
    return route(owned, spec.held, where.need, where.padded, spec.dims, spec.exchanger.rank)


def pad(source: Tensor, strips: Sequence[Tensor], way: Route, where: Geometry, fill: float) -> Tensor:
    """The padded input, from the tile and the received strips."""
    if way.same:
        return source
    padded = empty_as(source, way.resize(source, way.target))
    for slab in border(where.padded, where.in_box):
        padded[index(slab, way.dims)] = fill
    return way.assemble(padded, source, strips)


class _Windowed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, source: Tensor, where: Geometry, operator: LocalOperator, fill: float, *params: Tensor | None
    ) -> Tensor:
        way = halo_route(where)
        strips: list[Tensor] = []
        if where.exchange:
            wait, strips = way.start(source, where.source.exchanger)
            wait()
        ctx.where, ctx.operator, ctx.fill, ctx.way, ctx.strips = where, operator, fill, way, len(strips)
        ctx.save_for_backward(source, *strips, *params)
        if where.empty:
            size = way.resize(source, shape(where.out_box))
            channel = source.ndim + way.dims[0] - 1
            size[channel] = operator.channels(params, size[channel])
            return source.new_zeros(size)
        return operator.forward(pad(source, strips, way, where, fill), where, params)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        where, way = ctx.where, ctx.way
        source, *rest = ctx.saved_tensors
        strips, params = rest[: ctx.strips], rest[ctx.strips :]
        wanted = (ctx.needs_input_grad[0], *ctx.needs_input_grad[4:])
        grads: Grads
        if where.empty:
            grads = [source.new_zeros(way.resize(source, way.target))]
            grads += [torch.zeros_like(p) if p is not None and w else None for p, w in zip(params, wanted[1:])]
        else:
            padded = pad(source, strips, way, where, ctx.fill)
            grads = ctx.operator.backward(grad, padded, where, params, wanted)
            del padded
        grad_source = None
        if wanted[0]:
            grad_padded = grads[0]
            assert grad_padded is not None
            returned: list[Tensor] = []
            if where.exchange:
                wait, returned = way.start_back(grad_padded, where.source.exchanger)
                wait()
            grad_source = way.accumulate(grad_padded, shape(where.source.held), returned)
        return grad_source, None, None, None, *grads[1:]
