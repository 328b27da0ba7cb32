"""What a rule gives to `windowed`: an operator's arithmetic on one padded tile. Knows nothing of ranks and halos."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from halocline.tiling.geometry import Geometry

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


class Indexed(Recomputed):
    """One whose kernel on a GPU says which pixels it chose (max pooling): that is kept, as one device keeps it.

    Its backward then reads no input at all; and it never overlaps, as the parts of an output number other pixels.
    """

    def __init__(
        self,
        function: Callable[[Tensor, Geometry], Tensor],
        choose: Callable[[Tensor, Geometry], tuple[Tensor, Tensor]],
        give: Callable[[Tensor, Tensor, Tensor, Geometry], Tensor],
    ) -> None:
        super().__init__(function)
        self.choose = choose
        """From the padded input to the output and the chosen pixels' numbers."""
        self.give = give
        """The gradient of the padded input, from (that of the output, an input of which only the shape counts, the
        numbers, where)."""
