"""The backward pass of a loss that every rank computed alike: `loss.backward()`, with a refusal of what is no loss.

What is plain has whole gradients (see plain.py), so nothing is left to be summed when a backward ends: hooks,
optimizers in the backward and DistributedDataParallel see the gradients of one device. Knows no operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from halocline.tiling.tensor import TileTensor, untiled


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
        raise untiled(Tensor.backward, (loss,), why="a loss is one number: reduce the tile, with mean() or sum()")
    loss.backward(retain_graph=retain_graph, create_graph=create_graph)
