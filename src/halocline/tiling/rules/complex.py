"""Complex tiles: seen as pairs of real numbers and back, their real and imaginary parts, conjugates and adjoints.

What acts on each pixel alone and is the same for complex numbers (products, absolute values) is elementwise.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.elementwise import unary
from halocline.tiling.rules.shape import permuted, transpose
from halocline.tiling.tensor import TileTensor, rule, untiled

for _name in "conj_physical conj_physical_ resolve_conj resolve_neg cfloat cdouble chalf".split():
    for _space in (torch, Tensor):
        _function: Any = getattr(_space, _name, None)
        if callable(_function) and not isinstance(_function, torch.dtype):
            rule(_function)(unary(_function))
for _asked in (torch.is_conj, Tensor.is_conj, torch.is_neg, Tensor.is_neg):
    rule(_asked)(lambda input, asked=_asked: asked(input.local))


@rule(torch.view_as_real)
def view_as_real(input: TileTensor) -> TileTensor:
    """The new last dim holds the real and the imaginary part."""
    return TileTensor.wrap(torch.view_as_real(input.local), input.spec.with_dims(tuple(d - 1 for d in input.spec.dims)))


@rule(torch.view_as_complex)
def view_as_complex(input: TileTensor) -> TileTensor:
    if -1 in input.spec.dims:
        raise untiled(torch.view_as_complex, (input,), why="its last dim is cut; move the pairs to an uncut last dim")
    local = torch.view_as_complex(input.local)
    return TileTensor.wrap(local, input.spec.with_dims(tuple(d + 1 for d in input.spec.dims)))


def _part(name: str) -> None:
    @rule(getattr(Tensor, name).__get__)
    def part(input: TileTensor) -> TileTensor:
        """A view of the same numbers; of real ones, the tile itself."""
        part = getattr(input.local, name)
        return input if part is input.local else TileTensor.wrap(part, input.spec)


_part("real")
_part("imag")


def in_parts(function: Callable[..., Any], input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Any:
    """A convolution of complex numbers, made of four of real ones."""
    (a, b), (c, d) = ((t.real.clone(), t.imag.clone()) for t in (input, weight))

    def convolve(x: Tensor, kernel: Tensor) -> Tensor:
        return function(x, kernel, None, *settings)

    out = torch.complex(convolve(a, c) - convolve(b, d), convolve(a, d) + convolve(b, c))
    return out if bias is None else out + bias.view(-1, *(1,) * (weight.ndim - 2))


@rule(getattr(Tensor, "mH").__get__, torch.adjoint, Tensor.adjoint)  # noqa: B009
def adjoint(input: TileTensor) -> Tensor:
    return transpose(input, -2, -1).conj()


@rule(getattr(Tensor, "H").__get__)  # noqa: B009
def matrix_adjoint(input: TileTensor) -> Tensor:
    if input.ndim != 2:
        raise untiled(Tensor.adjoint, (input,), why="the adjoint of a tensor without exactly 2 dims; use mH")
    return permuted(input, (1, 0)).conj()
