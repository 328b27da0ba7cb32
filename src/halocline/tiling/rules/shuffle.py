"""Pixels into channels and back: pixel shuffle and unshuffle, channel shuffle, and windows laid out as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.boxes import Window
from halocline.tiling.geometry import Geometry
from halocline.tiling.lanes import per_sample
from halocline.tiling.local_operator import Recomputed
from halocline.tiling.rules.gathered import of_wholes, resized, view_of
from halocline.tiling.rules.shape import from_front
from halocline.tiling.strides import apart, in_format_of
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.window import windowed


@wraps(torch.pixel_shuffle)
def _shuffle(local: Tensor, upscale_factor: int) -> Tensor:
    """By reshaping, as torch's own function does nothing to a tensor without values, or refuses it."""
    r = upscale_factor
    if local.shape[-3] % (r * r):
        raise ValueError(f"pixel_shuffle by {r} needs a multiple of {r * r} channels, got {local.shape[-3]}")
    *batch, channels, height, width = local.shape
    squares = local.reshape(*batch, channels // (r * r), r, r, height, width)
    n = len(batch)
    out = squares.permute(*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return out.reshape(*batch, channels // (r * r), height * r, width * r)


@wraps(torch.pixel_unshuffle)
def _unshuffle(local: Tensor, downscale_factor: int) -> Tensor:
    r = downscale_factor
    *batch, channels, height, width = local.shape
    if height % r or width % r:
        raise ValueError(f"pixel_unshuffle by {r} does not divide the image's size {(height, width)}")
    squares = local.reshape(*batch, channels, height // r, r, width // r, r)
    n = len(batch)
    out = squares.permute(*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return out.reshape(*batch, channels * r * r, height // r, width // r)


@rule(torch.pixel_shuffle)
@per_sample(_shuffle, 2)
def pixel_shuffle(input: TileTensor, upscale_factor: int) -> TileTensor:
    out = in_format_of(_shuffle(input.local, upscale_factor), input.local)
    return TileTensor.wrap(
        apart(out, input.local), resized(input.spec, tuple(n * upscale_factor for n in input.spec.size))
    )


@dataclass(frozen=True)
class Unshuffle(Recomputed):
    """The local operator: its channels grow, which matters to a tile without pixels."""

    factor: int

    def function(self, padded: Tensor, where: Geometry) -> Tensor:  # type: ignore[override]
        return apart(in_format_of(_unshuffle(padded, self.factor), padded), padded)

    def channels(self, params: Sequence[Tensor | None], given: int) -> int:
        return given * self.factor**2


@rule(torch.pixel_unshuffle)
@per_sample(_unshuffle, 2)
def pixel_unshuffle(input: TileTensor, downscale_factor: int) -> TileTensor:
    if downscale_factor < 1 or any(n % downscale_factor for n in input.spec.size):
        raise ValueError(f"pixel_unshuffle by {downscale_factor} does not divide the image's size {input.spec.size}")
    window = Window(downscale_factor, downscale_factor)
    return windowed(input, (window, window), Unshuffle(downscale_factor), own_padding=False)


@rule(torch.channel_shuffle, torch.native_channel_shuffle)
def channel_shuffle(input: TileTensor, groups: int) -> TileTensor:
    if 1 in input.spec.positions(input.ndim):
        raise untiled(torch.channel_shuffle, (input, groups), why="its channels, dim 1, must not be cut")
    local = input.local
    if local.shape[1] % groups:
        raise ValueError(f"channel_shuffle needs a multiple of {groups} channels, got {local.shape[1]}")
    out = local.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
    return TileTensor.wrap(apart(in_format_of(out, local), local), input.spec)


of_wholes(F.unfold, F.fold)  # windows become columns of one long dim


@rule(Tensor.unfold)
def unfold(input: TileTensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of one dim as a new last dim; of pixels, whole on every rank."""
    if from_front(dimension, input.ndim) in input.spec.positions(input.ndim):
        return view_of(input, Tensor.unfold, dimension, size, step)
    spec = input.spec.with_dims(tuple(d - 1 for d in input.spec.dims))
    return TileTensor.wrap(input.local.unfold(dimension, size, step), spec)
