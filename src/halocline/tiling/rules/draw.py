"""Random numbers written to tiles or drawn by their values: every rank draws the whole tensor's and keeps its part.

So ranks with equal seeds see what one device sees, and their generators stay in step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.dropout import _whole as whole_like
from halocline.tiling.rules.gathered import whole
from halocline.tiling.rules.lines import cut_again
from halocline.tiling.tensor import TileTensor, find_tiles, rule, untiled


def _written(function: Callable[..., Tensor]) -> None:
    @rule(function)
    def write(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(input, TileTensor):
            raise untiled(function, (input, *args), kwargs, why="a plain tensor cannot be filled by a tile's values")
        if input.local._is_view():  # whose order in memory may be another one on one device
            raise untiled(
                function, (input, *args), kwargs, why="a view is not filled; write the numbers of a new tensor"
            )
        drawn = whole_like(0.0, input, by_channel=False)  # random numbers fill memory in order
        return input.copy_(function(drawn, *map(whole, args), **{name: whole(v) for name, v in kwargs.items()}))


for _name in "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_".split():
    _written(getattr(Tensor, _name))


def _drawn(function: Callable[..., Tensor]) -> None:
    @rule(function)
    def draw(*args: Any, **kwargs: Any) -> Tensor:
        """One number per pixel, by the values of the tiles, which may be probabilities, rates or means."""
        if kwargs.get("out") is not None:
            raise untiled(function, args, kwargs, why="out= has no rule; assign the result instead")
        lead = find_tiles((*args, *kwargs.values()))[0]
        out = function(*map(whole, args), **{name: whole(value) for name, value in kwargs.items()})
        return cut_again(out, lead.spec) if out.shape == lead.shape else out


for _function in (torch.bernoulli, Tensor.bernoulli, torch.poisson, torch.binomial, torch.normal):
    _drawn(_function)
