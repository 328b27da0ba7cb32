"""Random numbers written to tiles or drawn by their values: every rank draws the whole tensor's and keeps its part.

So ranks with equal seeds see what one device sees, and their generators stay in step. How many numbers are drawn for a
pixel, or what becomes of them, may depend on its value: then the tensor is gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.drawn_part import drawn_part
from halocline.tiling.rules.elementwise import named
from halocline.tiling.rules.gathered import cut_again, on_whole, on_wholes, whole
from halocline.tiling.tensor import TileTensor, find_tiles, rules, untiled


@rules(named("bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_", Tensor))
def write(function: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if not isinstance(input, TileTensor):
        raise untiled(function, (input, *args), kwargs, why="a plain tensor cannot be filled by a tile's values")
    if input.local._is_view():  # whose order in memory may be another one on one device
        raise untiled(function, (input, *args), kwargs, why="a view is not filled; write the numbers of a new tensor")
    drawn = drawn_part(function, 0.0, input, *map(whole, args), **{name: whole(v) for name, v in kwargs.items()})
    return input.copy_(TileTensor.wrap(drawn, input.spec))


@rules((torch.bernoulli, Tensor.bernoulli, torch.poisson, torch.binomial, torch.normal))
def draw(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """One number per pixel, by the values of the tiles, which may be probabilities, rates or means."""
    if kwargs.get("out") is not None:
        raise untiled(function, args, kwargs, why="out= has no rule; assign the result instead")
    lead = find_tiles((*args, *kwargs.values()))[0]
    out = on_wholes(function, *args, **kwargs)
    return cut_again(out, lead.spec) if out.shape == lead.shape else out


def rrelu(
    function: Callable[..., Any],
    last: str,
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


rules((F.rrelu,), "inplace")(rrelu)
rules((torch.rrelu, torch.rrelu_), "generator")(rrelu)
