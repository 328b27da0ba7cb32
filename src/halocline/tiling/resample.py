"""Separable resampling along one dim: each output is a weighted sum, or the largest, of a run of neighbouring pixels.

Pure tables and local arithmetic, shared by interpolation and adaptive pooling. Knows nothing of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from halocline.tiling.boxes import Interval, Table
from halocline.tiling.constant import constant

_FEW_TAPS = 8
"""Up to so many taps are added one by one; more are one product with a matrix."""


@dataclass(frozen=True, eq=False)
class Taps:
    """Output j is made of inputs starts[j], starts[j] + 1, ..., one per weight in weights[j].

    Compared by identity, like the reach it contains: build it once in a cached function.
    """

    size: int
    starts: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    centres: tuple[float, ...] = ()
    reach: Table = field(init=False)

    def __post_init__(self) -> None:
        stops = tuple(a + len(w) for a, w in zip(self.starts, self.weights))
        object.__setattr__(self, "reach", Table(self.starts, stops, self.centres))


@constant
def _table(
    taps: Taps, out: Interval, given: Interval, dtype: torch.dtype, device: torch.device
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Per tap, which inputs (counted from given[0]) and weights the outputs have; a tap that is missing weighs 0."""
    rows = [(taps.starts[j] - given[0], taps.weights[j]) for j in range(*out)]
    count = max(len(w) for _, w in rows)
    where = [torch.tensor([a + min(t, len(w) - 1) for a, w in rows], device=device) for t in range(count)]
    weights = [[w[t] if t < len(w) else 0.0 for _, w in rows] for t in range(count)]
    return tuple(where), tuple(torch.tensor(w, dtype=dtype, device=device) for w in weights)


@constant
def _matrix(taps: Taps, out: Interval, given: Interval, dtype: torch.dtype, device: torch.device) -> Tensor:
    matrix = torch.zeros(out[1] - out[0], given[1] - given[0], dtype=torch.float64)
    for row, j in enumerate(range(*out)):
        start = taps.starts[j] - given[0]
        matrix[row, start : start + len(taps.weights[j])] = torch.tensor(taps.weights[j], dtype=torch.float64)
    return matrix.to(device, dtype)


def resample(x: Tensor, dim: int, taps: Taps, out: Interval, given: Interval) -> Tensor:
    """Outputs [out) along `dim` (negative) of a tensor that holds the inputs [given)."""
    where, weights = _table(taps, out, given, x.dtype, x.device)
    if len(where) > _FEW_TAPS:
        return (x.movedim(dim, -1) @ _matrix(taps, out, given, x.dtype, x.device).t()).movedim(-1, dim)
    along = [-1] + [1] * (-dim - 1)
    total = x.index_select(dim, where[0]) * weights[0].view(along)
    for places, weight in zip(where[1:], weights[1:]):
        total = torch.addcmul(total, x.index_select(dim, places), weight.view(along))
    return total


def largest(x: Tensor, dim: int, taps: Taps, out: Interval, given: Interval) -> Tensor:
    """The largest input of each output; of equal ones the first, which gets the gradient."""
    where, _ = _table(taps, out, given, torch.float32, x.device)
    # A tap that is missing repeats the last one, which as a later one never wins.
    candidates = x.index_select(dim, torch.stack(where, 1).flatten()).unflatten(dim, (out[1] - out[0], len(where)))
    return candidates.max(dim).values
