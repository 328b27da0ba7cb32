"""Dropout with the mask that one device would draw.

Every rank draws the numbers of the whole tensor from the default generator and keeps its part. So ranks that start with
equal seeds stay in step, whatever they own, and equal one device with that seed. Elementwise dropout draws as
`drawn_part` does; dropout of channels needs one number per channel.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.drawn_part import drawn_part
from halocline.tiling.rules.elementwise import named, part_of
from halocline.tiling.tensor import TileTensor, rules, untiled
from halocline.tiling.whole_order import as_on_whole

# The constant of self-normalising networks: -(lambda * alpha) of SELU, Klambauer et al. (2017), which torch uses, too.
_ALPHA = 1.7580993408473766


def _drawn(function: Callable[..., Tensor], value: float, x: TileTensor, by_channel: bool, p: float) -> Tensor:
    """What this rank holds of `function` of a whole tensor like `x` that is filled with `value`."""
    if not by_channel:
        return drawn_part(function, value, x, p, True)
    shape = list(x.shape)  # one pixel: dims 0 and 1 are batch and channels to torch, whatever they are; a plain (C, L)
    first = 1 if x.ndim == 2 else 2  # has dim 0 only
    shape[first:] = [1] * (x.ndim - first)
    pixel = torch.full(shape, value, dtype=x.dtype, device=x.device)  # torch draws these as one line
    return part_of(function(pixel, p, True), x.spec).clone()


def _dropped(whole: Tensor, by_channel: bool) -> Tensor:
    """Times a mask, as torch drops."""
    mask = whole.new_ones(whole.shape[:2] + (1,) * (whole.ndim - 2)) if by_channel else torch.ones_like(whole)
    return whole * mask


def dropout(
    function: Callable[..., Tensor],
    by_channel: bool,
    alpha: bool,
    input: Tensor,
    p: float = 0.5,
    training: Any = None,
    inplace: bool = False,
    **kwargs: Any,
) -> TileTensor:
    if not isinstance(input, TileTensor):
        raise untiled(function, (input,))
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    usual = function not in (F.alpha_dropout, F.feature_alpha_dropout)  # whether it drops when it is not said
    train = kwargs.get("train", usual if training is None else training)
    inplace = inplace or function.__name__.endswith("_")
    local, spec = input.local, input.spec
    if not train or p == 0.0:  # the tensor itself, and nothing is drawn
        return input
    if not alpha:
        draws = torch.dropout_ if inplace and function is F.dropout else function  # other numbers on a GPU
        mask = _drawn(draws, 1.0, input, by_channel, p)
        out = local.mul_(mask) if inplace else local * mask
    elif p == 1.0:  # torch draws nothing
        out = local.mul_(0.0) if inplace else local * 0.0
    else:
        # On zeros it gives the offset alone: positive where the value is kept, negative where it is dropped.
        offset = _drawn(function, 0.0, input, by_channel, p)
        scale = (offset > 0).to(local.dtype) * (1.0 / sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p)))  # as torch rounds
        out = (local.mul_(scale) if inplace else local * scale).add_(offset)
    if out is local:
        return input
    return TileTensor.wrap(as_on_whole(out, spec, _dropped, (input, by_channel)), spec)


rules((F.dropout, torch.dropout, torch.dropout_), False, False)(dropout)
rules(named("dropout1d dropout2d dropout3d feature_dropout feature_dropout_", F, torch), True, False)(dropout)
rules(named("alpha_dropout alpha_dropout_", F, torch), False, True)(dropout)
rules(named("feature_alpha_dropout feature_alpha_dropout_", F, torch), True, True)(dropout)
