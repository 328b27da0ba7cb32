"""torch.fft: every transform along pixels or channels, real and complex, and the shifts of its frequencies.

A spectrum along pixels is cut as the pixels are; rfft's, which has about half of them, at the same fractions. Each rank
transforms whole lines (lines.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.elementwise import named
from halocline.tiling.rules.gathered import of_wholes
from halocline.tiling.rules.lines import on_lines
from halocline.tiling.rules.shape import ints
from halocline.tiling.tensor import TileTensor, rule


def _transform(name: str) -> None:
    function: Callable[..., Tensor] = getattr(torch.fft, name)
    several = name[-1] in "2n"
    usual: Any = {"2": (-2, -1), "n": None}.get(name[-1], -1)

    @rule(function)
    def transform(
        input: TileTensor, n: Any = None, dim: Any = usual, norm: str | None = None, *, s: Any = None
    ) -> TileTensor:
        sizes = s if several and n is None else n
        count = input.ndim if sizes is None else len(ints((sizes,)))
        dims = tuple(range(-count, 0)) if dim is None else ints((dim,))
        return on_lines(lambda whole: function(whole, sizes, dim, norm), input, dims)


for _name in "fft ifft rfft irfft hfft ihfft".split():
    for _dims in ("", "2", "n"):
        _transform(_name + _dims)


def _shifted(input: TileTensor, dim: Any, back: bool) -> Tensor:
    dims = tuple(range(input.ndim)) if dim is None else ints((dim,))
    return torch.roll(input, [(input.shape[d] + back) // 2 for d in dims], dims)


@rule(torch.fft.fftshift)
def fftshift(input: TileTensor, dim: Any = None) -> Tensor:
    return _shifted(input, dim, back=False)


@rule(torch.fft.ifftshift)
def ifftshift(input: TileTensor, dim: Any = None) -> Tensor:
    return _shifted(input, dim, back=True)


# Frames and samples are different dims, so what was cut in the one is gathered, and plain in the other.
of_wholes(*named("stft istft"))
