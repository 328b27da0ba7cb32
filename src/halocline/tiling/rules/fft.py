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
from halocline.tiling.tensor import TileTensor, rules


@rules(named("fft ifft rfft irfft hfft ihfft", torch.fft), -1)
@rules(named("fft2 ifft2 rfft2 irfft2 hfft2 ihfft2", torch.fft), (-2, -1))
@rules(named("fftn ifftn rfftn irfftn hfftn ihfftn", torch.fft), None)
def transform(
    function: Callable[..., Tensor],
    usual: Any,
    input: TileTensor,
    n: Any = None,
    dim: Any = None,
    norm: str | None = None,
    *,
    s: Any = None,
) -> TileTensor:
    """`n` is the size along one dim, as `s` are those along several."""
    sizes, dim = s if n is None else n, usual if dim is None else dim
    count = input.ndim if sizes is None else len(ints((sizes,)))
    dims = tuple(range(-count, 0)) if dim is None else ints((dim,))
    return on_lines(lambda whole: function(whole, sizes, dim, norm), input, dims)


@rules((torch.fft.fftshift,), 0)
@rules((torch.fft.ifftshift,), 1)
def shift(function: Any, back: int, input: TileTensor, dim: Any = None) -> Tensor:
    dims = tuple(range(input.ndim)) if dim is None else ints((dim,))
    return torch.roll(input, [(input.shape[d] + back) // 2 for d in dims], dims)


# Frames and samples are different dims, so what was cut in the one is gathered, and plain in the other.
of_wholes(*named("stft istft"))
