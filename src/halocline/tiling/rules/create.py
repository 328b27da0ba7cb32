"""New tensors made in the likeness of a tile: of a given shape they are plain; random ones are those of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.drawn_part import drawn_part
from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.strides import memory_format
from halocline.tiling.tensor import TileTensor, rule, rules, untiled
from halocline.tiling.whole_order import whole_strides


@rules((torch.rand_like, torch.randn_like, torch.randint_like))
def random_like(function: Callable[..., Any], input: TileTensor, *args: Any, **kwargs: Any) -> TileTensor:
    """Drawn for the whole tensor on every rank, of which each keeps its part: all generators stay in step.

    For as long as the call takes, a rank holds the random numbers of the whole tensor, if it is asked for another
    dtype or order in memory, or torch draws otherwise than `drawn_part` can.
    """
    if not kwargs:
        return TileTensor.wrap(drawn_part(function, 0.0, input, *args), input.spec)
    if kwargs.get("device") is not None and torch.device(kwargs["device"]) != input.device:
        raise untiled(function, (input, *args), kwargs, why="random tiles are drawn on the tile's own device")
    likeness = input.local.detach().new_empty(()).expand(input.shape)  # which takes no memory
    if kwargs.get("memory_format", torch.preserve_format) is torch.preserve_format:
        strides = whole_strides(input)
        kwargs["memory_format"] = memory_format(tuple(input.shape), strides)
        if kwargs["memory_format"] is torch.preserve_format:
            likeness = input.local.new_empty_strided(input.shape, strides)
    drawn = function(likeness, *args, **kwargs)
    return TileTensor.wrap(part_of(drawn, input.spec).clone(), input.spec)


@rule(Tensor.new_tensor)
def new_tensor(input: Tensor, data: Any, **kwargs: Any) -> Tensor:
    """A plain tensor of the numbers given, as fixed kernels are made."""
    if not isinstance(input, TileTensor) or isinstance(data, Tensor):
        raise untiled(Tensor.new_tensor, (input, data), kwargs, why="it copies numbers, not tensors; use clone")
    return input.local.detach().new_tensor(data, **kwargs)
