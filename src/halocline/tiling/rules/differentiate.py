"""Gradients of tiles, or with respect to tiles: the backward pass of a loss that every rank computed alike,
`torch.autograd.grad`, and backwards whose gradients are given.

What is plain has whole gradients (see plain.py), so nothing is left to be summed when a backward ends: hooks,
optimizers in the backward and DistributedDataParallel see the gradients of one device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from halocline.tiling.rules.attributes import MARGINS
from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.tensor import TileTensor, rule, untiled

_ONE_NUMBER = "a loss is one number: reduce the tile, with mean() or sum()"


def backward(
    loss: Tensor,
    model: nn.Module | Iterable[Tensor] | None = None,
    group: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Add the one-device gradients of `loss` to the `.grad` of every parameter, on every rank: `loss.backward()`.

    `loss` is a scalar computed alike on every rank. `model` and `group` need not be given; they say what is trained.
    """
    if isinstance(loss, TileTensor):
        raise untiled(Tensor.backward, (loss,), why=_ONE_NUMBER)
    loss.backward(retain_graph=retain_graph, create_graph=create_graph)


@rule(torch.autograd.grad)
def gradients(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of tiles are tiles, those of plain tensors whole. An output that is a tile needs its gradient."""
    outputs, inputs = _listed(outputs), _listed(inputs)
    if is_grads_batched:
        raise untiled(
            torch.autograd.grad, (outputs, inputs), why="gradients in batches have no rule; take them one by one"
        )
    why = "give grad_outputs, or reduce the tile to one number"
    owned, leaves, given = _opened(torch.autograd.grad, outputs, inputs, grad_outputs, why)
    found = torch.autograd.grad(
        owned,
        leaves,
        given,
        retain_graph=retain_graph,
        create_graph=create_graph,
        allow_unused=allow_unused,
        materialize_grads=materialize_grads,
    )
    pairs = zip(inputs, found)
    return tuple(TileTensor.wrap(g, t.spec) if isinstance(t, TileTensor) and g is not None else g for t, g in pairs)


@rule(torch.autograd.backward)
def backward_of_all(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Of tiles whose gradients are given, as tiles or whole."""
    given = grad_variables if grad_tensors is None else grad_tensors
    owned, leaves, grads = _opened(Tensor.backward, tensors, inputs, given, _ONE_NUMBER)
    torch.autograd.backward(owned, grads, retain_graph, create_graph, inputs=leaves or None)


@rule(Tensor.backward)
def backward_of(
    tensor: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    backward_of_all(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def _listed(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,) if isinstance(value, Tensor) else tuple(value)


def _opened(function: Any, outputs: Any, inputs: Any, grads: Any, why: str) -> tuple[list[Any], list[Any], list[Any]]:
    """What autograd knows of outputs, inputs and outputs' gradients; `why` no output that is a tile may lack one."""
    outputs, inputs = _listed(outputs), _listed(inputs)
    grads = _listed(grads) or (None,) * len(outputs)
    if any(isinstance(o, TileTensor) and g is None for o, g in zip(outputs, grads)):
        raise untiled(function, outputs, why=why)
    if any(isinstance(t, TileTensor) and not t.spec.bare for t in inputs):
        raise untiled(function, (*outputs, *inputs), why=f"{MARGINS}; take it outside of fused()")
    return (
        [o.owned if isinstance(o, TileTensor) else o for o in outputs],
        [t.local if isinstance(t, TileTensor) else t for t in inputs],
        [_gradient(o, g) for o, g in zip(outputs, grads)],
    )


def _gradient(tensor: Tensor, grad: Tensor | None) -> Tensor | None:
    if grad is None or not isinstance(tensor, TileTensor):
        return grad.full() if isinstance(grad, TileTensor) else grad
    bare = tensor.spec.without_margin()
    return grad.retiled(bare).local if isinstance(grad, TileTensor) else part_of(grad, bare)
