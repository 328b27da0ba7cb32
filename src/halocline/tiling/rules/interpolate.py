"""Interpolation to another size (nearest, nearest-exact, linear, bilinear, trilinear, bicubic, area, antialiased), and
sampling at given places: any pixel may be read there, so the image is gathered; the places may stay tiles.

Every mode is a table per dim of the pixels that each output reads. An enlargement by a whole number, the common case,
runs torch's own function on the tile and its halo instead: the same numbers in one step. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import floor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from halocline.tiling.boxes import Box, Table
from halocline.tiling.constant import constant
from halocline.tiling.function import Function
from halocline.tiling.geometry import Geometry
from halocline.tiling.lanes import per_sample
from halocline.tiling.local_operator import Recomputed
from halocline.tiling.plain import for_tiles
from halocline.tiling.resample import Taps, resample
from halocline.tiling.route import index
from halocline.tiling.rules.gathered import cut_again, whole
from halocline.tiling.rules.pooling import adaptive_average
from halocline.tiling.strides import in_format_of
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.window import windowed

_MODES: dict[int, tuple[str, ...]] = {
    3: ("nearest", "nearest-exact", "area", "linear"),
    4: ("nearest", "nearest-exact", "area", "bilinear", "bicubic"),
    5: ("nearest", "nearest-exact", "area", "trilinear"),
}


# ------------------------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True, eq=False)
class Copies:
    """Nearest pixels: which one each output copies, and which one gets its gradient.

    These differ for a few sizes, as torch's backward rounds in another way than its forward. One device is the
    reference, so both are asked of torch itself.
    """

    copied: tuple[int, ...]
    credited: tuple[int, ...]
    reach: Table


@lru_cache(maxsize=512)
def nearest(size: int, out: int, scale: float | None, exact: bool, dtype: torch.dtype, device: torch.device) -> Copies:
    with no_dispatch():  # numbers are needed even where a shape-only run asks for them
        return _nearest(size, out, scale, exact, dtype, device)


def _nearest(size: int, out: int, scale: float | None, exact: bool, dtype: torch.dtype, device: torch.device) -> Copies:
    aten = torch.ops.aten
    forward = aten._upsample_nearest_exact1d.default if exact else aten.upsample_nearest1d.default
    backward = aten._upsample_nearest_exact1d_backward if exact else aten.upsample_nearest1d_backward
    # The binary digits of the pixels' numbers, as every dtype can hold those exactly.
    numbers = torch.arange(size, device=device)
    digits = torch.stack([(numbers >> k) & 1 for k in range(size.bit_length())]).unsqueeze(0).to(dtype)
    chosen = forward(digits, [out], scale)[0].long()
    copied = (chosen << torch.arange(len(chosen), device=device).unsqueeze(1)).sum(0)
    # A gradient of 1 per output counts the outputs of each pixel, and those follow each other.
    ones = torch.ones(1, 1, out, dtype=dtype if dtype is torch.float64 else torch.float32, device=device)
    counts = backward.default(ones, [out], [1, 1, size], scale).flatten().long()
    credited = numbers.repeat_interleave(counts)
    starts, stops = torch.minimum(copied, credited), torch.maximum(copied, credited) + 1
    reach = Table(tuple(starts.tolist()), tuple(stops.tolist()))
    return Copies(tuple(copied.tolist()), tuple(credited.tolist()), reach)


def _ratio(size: int, out: int, scale: float | None, align_corners: bool) -> float:
    """Input pixels per output pixel, as torch computes it."""
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / out


def _cubic(t: float, a: float) -> float:
    """The cubic convolution kernel of Keys (1981)."""
    t = abs(t)
    if t <= 1:
        return ((a + 2) * t - (a + 3)) * t * t + 1
    return (((t - 5) * t + 8) * t - 4) * a if t < 2 else 0.0


def _at_border(size: int, start: int, weights: Sequence[float]) -> tuple[int, tuple[float, ...]]:
    """Taps outside the image read its border pixel: their weight is added to that one's."""
    inside: dict[int, float] = {}
    for t, w in enumerate(weights):
        pixel = min(max(start + t, 0), size - 1)
        inside[pixel] = inside.get(pixel, 0.0) + w
    return min(inside), tuple(inside[p] for p in sorted(inside))


@lru_cache(maxsize=512)
def smooth(size: int, out: int, scale: float | None, align_corners: bool, cubic: bool) -> Taps:
    """Linear or cubic interpolation at the place of each output."""
    ratio = _ratio(size, out, scale, align_corners)
    rows, centres = [], []
    for j in range(out):
        place = ratio * j if align_corners else ratio * (j + 0.5) - 0.5
        if not cubic:
            place = max(place, 0.0)
        start = floor(place)
        t = place - start
        if cubic:
            rows.append(_at_border(size, start - 1, [_cubic(t + 1 - i, -0.75) for i in range(4)]))
        else:
            rows.append(_at_border(size, start, [1 - t, t]))
        centres.append(place)
    return Taps(size, tuple(a for a, _ in rows), tuple(w for _, w in rows), tuple(centres))


@lru_cache(maxsize=512)
def antialiased(size: int, out: int, scale: float | None, align_corners: bool, cubic: bool) -> Taps:
    """The kernel is stretched to the output's pixels when the image shrinks, so that every input pixel counts."""
    ratio = _ratio(size, out, scale, align_corners)
    stretch = max(ratio, 1.0)
    support = (2.0 if cubic else 1.0) * stretch
    starts, rows, centres = [], [], []
    for j in range(out):
        centre = ratio * (j + 0.5)
        first = max(int(centre - support + 0.5), 0)
        last = min(int(centre + support + 0.5), size)
        places = [(i - centre + 0.5) / stretch for i in range(first, last)]
        weights = [_cubic(p, -0.5) if cubic else max(0.0, 1.0 - abs(p)) for p in places]
        total = sum(weights)
        starts.append(first)
        rows.append(tuple(w / total for w in weights))
        centres.append(centre - 0.5)
    return Taps(size, tuple(starts), tuple(rows), tuple(centres))


# ----------------------------------------------------------------------------------------------------- local operators


@lru_cache(maxsize=512)
def by_taps(taps: tuple[Taps, ...], dims: tuple[int, ...]) -> Recomputed:
    def run(padded: Tensor, where: Geometry) -> Tensor:
        wide = padded.float() if padded.dtype in (torch.float16, torch.bfloat16) else padded
        for t, dim, out, given in zip(taps, dims, where.out_box, where.in_box):
            wide = resample(wide, dim, t, out, given)
        return in_format_of(wide.to(padded.dtype), padded)

    return Recomputed(run)


class _Copy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, copied: Tensor, credited: Tensor) -> Tensor:
        ctx.dim, ctx.credited, ctx.shape = dim, credited, x.shape
        return x.index_select(dim, copied)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.new_zeros(ctx.shape).index_add_(ctx.dim, ctx.credited, grad), None, None, None


@lru_cache(maxsize=512)
def by_copies(tables: tuple[Copies, ...], dims: tuple[int, ...]) -> Recomputed:
    @constant
    def local(out: Box, given: Box, device: torch.device) -> list[list[Tensor]]:
        return [
            [torch.tensor([i - a for i in pixels[c:d]], device=device) for pixels in (t.copied, t.credited)]
            for t, (c, d), (a, _) in zip(tables, out, given)
        ]

    def run(padded: Tensor, where: Geometry) -> Tensor:
        copies = padded
        for dim, (copied, credited) in zip(dims, local(where.out_box, where.in_box, padded.device)):
            copies = _Copy.apply(copies, dim, copied, credited)
        return in_format_of(copies, padded)

    return Recomputed(run)


@lru_cache(maxsize=512)
def enlarging(factors: tuple[int, ...], dims: tuple[int, ...], mode: str) -> Recomputed:
    """Torch's own enlargement of the pixels given, right but for the outermost ones of the halo, which are cut off."""

    def run(padded: Tensor, where: Geometry) -> Tensor:
        corners = None if mode.startswith("nearest") else False
        out = F.interpolate(padded, scale_factor=[float(f) for f in factors], mode=mode, align_corners=corners)
        parts = [slice(c - a * f, d - a * f) for f, (a, _), (c, d) in zip(factors, where.in_box, where.out_box)]
        if all(p == slice(0, n) for p, n in zip(parts, (out.shape[d] for d in dims))):
            return out
        return out[index(parts, dims)].clone(memory_format=torch.preserve_format)

    return Recomputed(run)


# --------------------------------------------------------------------------------------------------------------- rules


def _per_dim(value: Any, dims: int, what: str) -> list[Any]:
    result = list(value) if isinstance(value, (list, tuple)) else [value] * dims
    if len(result) != dims:
        raise ValueError(f"{what} {tuple(result)} has {len(result)} numbers but the image {dims} dims")
    return result


def _as_autocast(input: TileTensor, mode: str) -> TileTensor:
    """The tile in the dtype that autocast gives interpolation on this device: asked of torch, on one pixel."""
    if not torch.is_autocast_enabled(input.device.type) or not input.dtype.is_floating_point:
        return input
    pixel = torch.zeros((1,) * input.ndim, dtype=input.dtype, device=input.device)
    dtype = F.interpolate(pixel, scale_factor=2.0, mode=mode).dtype
    return input if dtype == input.dtype else TileTensor.wrap(input.local.to(dtype), input.spec)


@rule(F.interpolate)
@per_sample(F.interpolate)
def interpolate(
    input: TileTensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> TileTensor:
    dims = input.ndim - 2
    if mode not in _MODES.get(input.ndim, ()) or (antialias and mode not in ("bilinear", "bicubic")):
        kind = "antialiased " if antialias else ""
        raise untiled(F.interpolate, (input,), why=f"{kind}mode {mode!r} of a tensor of {input.ndim} dims has no rule")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ValueError(f"align_corners={align_corners} can only be set with linear and cubic modes, not {mode!r}")
    if (size is None) == (scale_factor is None):
        raise ValueError(f"give one of size={size} and scale_factor={scale_factor}")
    if not input.dtype.is_floating_point and not mode.startswith("nearest"):  # which torch rounds in its own way
        asked = size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
        return cut_again(F.interpolate(input.full(), *asked), input.spec)
    input = _as_autocast(input, mode)
    given = input.spec.size
    scales: list[float | None] = [None] * dims
    if size is not None:
        if recompute_scale_factor:
            raise ValueError(f"recompute_scale_factor has no meaning with an explicit size={size}")
        sizes = [int(n) for n in _per_dim(size, dims, "size")]
    else:
        factors = [float(f) for f in _per_dim(scale_factor, dims, "scale_factor")]
        sizes = [int(n * f) for n, f in zip(given, factors)]
        scales = [None] * dims if recompute_scale_factor or mode == "area" else list(factors)
    if min(sizes) < 1:
        raise ValueError(f"an image of {given} pixels cannot become {tuple(sizes)}; give a larger size")
    if mode == "area":
        return adaptive_average(input, tuple(sizes))
    if any(o == n and s not in (None, 1.0) for o, n, s in zip(sizes, given, scales)):
        raise untiled(
            F.interpolate,
            (input, size, scale_factor),
            why="a scale that leaves a size as it is has no single meaning in torch (some of its kernels copy); give "
            "the size instead, or recompute_scale_factor=True",
        )
    times = tuple(o // n for o, n in zip(sizes, given))
    whole = all(o == n * t and s in (None, t) for o, n, t, s in zip(sizes, given, times, scales))
    cut = input.spec.dims
    if mode.startswith("nearest"):
        how = mode == "nearest-exact", input.dtype, input.device
        tables = tuple(nearest(n, o, s, *how) for n, o, s in zip(given, sizes, scales))
        operator = enlarging(times, cut, mode) if whole and _regular(tables, times) else by_copies(tables, cut)
        return windowed(input, tuple(t.reach for t in tables), operator, own_padding=False)
    weighted: Callable[..., Taps] = antialiased if antialias else smooth
    corners = bool(align_corners)
    taps = tuple(weighted(n, o, s, corners, mode == "bicubic") for n, o, s in zip(given, sizes, scales))
    plain = whole and not corners and not antialias
    operator = enlarging(times, cut, mode) if plain else by_taps(taps, cut)
    return windowed(input, tuple(t.reach for t in taps), operator, own_padding=False)


@lru_cache(maxsize=512)
def _regular(tables: tuple[Copies, ...], times: tuple[int, ...]) -> bool:
    """Whether an enlargement of a part is a part of the enlargement: rounding may spoil that."""
    pairs = list(zip(tables, times))
    return all(t.copied == t.credited == tuple(j // n for j in range(len(t.copied))) for t, n in pairs)


@rule(F.grid_sample)
def grid_sample(input: Tensor, grid: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Places (batch, height, width, 2) that are tiles give tiles (batch, channels, height, width); others a tensor."""
    if not isinstance(grid, TileTensor):
        return F.grid_sample(whole(input), grid, *args, **kwargs)
    places = grid.ndim
    if not all(1 - places <= d <= -2 for d in grid.spec.dims):
        raise untiled(F.grid_sample, (input, grid), why="its grid may be cut between batch and coordinates only")
    out = grid.spec.with_dims(tuple(d + 1 for d in grid.spec.dims))
    image = input.everywhere() if isinstance(input, TileTensor) else for_tiles(input, grid.spec.exchanger)
    mine = grid.local
    if not mine.numel():
        held = tuple(mine.shape[1:-1])
        # Connected to both tensors, so that every rank's backward takes part in the same exchanges.
        none = image.sum() * 0 + mine.sum() * 0
        return TileTensor.wrap(none.expand(image.shape[0], image.shape[1], *held), out)
    return TileTensor.wrap(F.grid_sample(image, mine, *args, **kwargs), out)
