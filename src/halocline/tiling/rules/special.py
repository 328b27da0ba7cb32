"""Special functions of each pixel alone: gamma, Bessel, polynomials and such; the usual ones are elementwise.py's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.elementwise import nary, unary
from halocline.tiling.rules.lines import each
from halocline.tiling.tensor import TileTensor, rule, untiled

_UNARY = """
airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx expit gammaln i0e i1 i1e log_ndtr modified_bessel_i0
modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 multigammaln ndtr ndtri psi scaled_modified_bessel_k0
scaled_modified_bessel_k1 spherical_bessel_j0
"""
_NARY = """
chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w gammainc gammaincc
hermite_polynomial_h hermite_polynomial_he igamma igamma_ igammac igammac_ laguerre_polynomial_l legendre_polynomial_p
shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
shifted_chebyshev_polynomial_w xlog1py zeta
"""


def _named(name: str) -> list[Callable[..., Any]]:
    return [getattr(space, name) for space in (torch, Tensor, torch.special) if hasattr(space, name)]


for _name in _UNARY.split():
    for _function in _named(_name):
        rule(_function)(unary(_function))
for _name in _NARY.split():
    for _function in _named(_name):
        rule(_function)(nary(_function, in_place=_name.endswith("_")))


@rule(torch.polygamma, torch.special.polygamma)
def polygamma(n: int, input: TileTensor) -> TileTensor:
    return TileTensor.wrap(torch.polygamma(n, input.local), input.spec)


rule(Tensor.polygamma)(unary(Tensor.polygamma))
rule(Tensor.polygamma_)(unary(Tensor.polygamma_))


@rule(torch.frexp, Tensor.frexp)
def frexp(input: TileTensor, **kwargs: Any) -> Any:
    if kwargs:
        raise untiled(torch.frexp, (input,), kwargs, why="out= has no rule; assign the result instead")
    return each(lambda part: TileTensor.wrap(part, input.spec), torch.frexp(input.local))


@rule(torch.isin)
def isin(elements: Any, test_elements: Any, **kwargs: Any) -> TileTensor:
    """Whether each pixel's value is one of a plain tensor's."""
    if not isinstance(elements, TileTensor) or isinstance(test_elements, TileTensor) or kwargs.get("out") is not None:
        raise untiled(torch.isin, (elements, test_elements), kwargs, why="the values to look for must be plain")
    return TileTensor.wrap(torch.isin(elements.local, test_elements, **kwargs), elements.spec)
