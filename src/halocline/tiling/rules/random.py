"""Functions that draw random numbers by the values they are given: bernoulli, and rrelu in training.

How many numbers are drawn for a pixel, or what becomes of them, is known where the pixel is: the tensor is gathered,
every rank draws what one device draws, and keeps its part. So generators that start equal stay in step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.rules.gathered import on_whole
from halocline.tiling.tensor import TileTensor, rule, untiled


@rule(torch.bernoulli, Tensor.bernoulli)
def bernoulli(input: TileTensor, *p: Any, **kwargs: Any) -> TileTensor:
    if kwargs.get("out") is not None or any(isinstance(v, TileTensor) for v in (*p, *kwargs.values())):
        raise untiled(torch.bernoulli, (input, *p), kwargs, why="only its first argument may be a tile")
    return on_whole(lambda whole: torch.bernoulli(whole, *p, **kwargs), input)


def _rrelu(function: Callable[..., Any], last: str) -> None:
    @rule(function)
    def rrelu(
        input: TileTensor,
        lower: float = 1 / 8,
        upper: float = 1 / 3,
        training: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> TileTensor:
        local, spec = input.local, input.spec
        if not training or spec.exchanger.size == 1:
            out = function(local, lower, upper, training, *args, **kwargs)
            return input if out is local else TileTensor.wrap(out, spec)
        given = {**dict(zip((last,), args)), **kwargs}
        generator = given.get("generator")
        drawn = on_whole(lambda whole: torch.rrelu(whole, lower, upper, True, generator), input)
        if not given.get("inplace", function is torch.rrelu_):
            return drawn
        local.copy_(drawn.fetched(spec.have).local)
        return input


_rrelu(F.rrelu, "inplace")
_rrelu(torch.rrelu, "generator")
_rrelu(torch.rrelu_, "generator")
