"""One parameter under both of its names, and how its values are laid out on either side.

Ours are `layer.parameter` of the sequence of layers. Queries, keys and values are kept head by head here and one after
the other there; some of their matrices are transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Weight:
    """A parameter of ours and the tensors it is made of there."""

    ours: str
    theirs: tuple[str, ...]
    read: Callable[[Sequence[Tensor]], Tensor]
    """Theirs -> ours."""
    write: Callable[[Tensor], Sequence[Tensor]]
    """Ours -> theirs."""


def plain(ours: str, theirs: str) -> Weight:
    """The same on both sides."""
    return Weight(ours, (theirs,), lambda given: given[0], lambda tensor: [tensor])


def module(ours: str, theirs: str, *parts: str) -> list[Weight]:
    """The parameters of a module that are the same on both sides, by default weight and bias."""
    return [plain(f"{ours}.{part}", f"{theirs}.{part}") for part in parts or ("weight", "bias")]


def transposed(ours: str, theirs: str) -> Weight:
    """A matrix that there stands (input, output)."""
    return Weight(ours, (theirs,), lambda given: given[0].T, lambda tensor: [tensor.T])


def head_by_head(ours: str, theirs: Sequence[str], heads: int, *, turned: bool = False) -> Weight:
    """Queries, keys and values of all heads: three tensors there, or one that holds them one after the other (`turned`:
    transposed)."""

    def read(given: Sequence[Tensor]) -> Tensor:
        whole = torch.cat([t.T if turned else t for t in given])
        return whole.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)

    def write(tensor: Tensor) -> Sequence[Tensor]:
        whole = tensor.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        return [t.T if turned else t for t in whole.chunk(len(theirs))]

    return Weight(ours, tuple(theirs), read, write)
