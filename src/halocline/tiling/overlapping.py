"""Whether an operator computes while its halo travels, and how its outputs split for that.

    tile 0 [ . . . . | . . . . ] tile 1
    out    [ = = = + | + = = = ]     every tile runs the operator on itself at once, as though it ended at the cut;
                                     the seams "+" are computed again when the neighbour's strip has arrived

This copies no tile into a padded one, but costs a small operator per seam, so it does not always pay: the policy
`auto` tries both ways in the first calls of each geometry and keeps the faster one. Ranks choose for themselves: the
messages are the same either way. Knows nothing of gradients.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from halocline.tiling.boxes import Box, Interval, Reach, Window, clip, shape
from halocline.tiling.geometry import Geometry

Policy = Literal["auto", "never", "always"]
_POLICY: ContextVar[Policy] = ContextVar("overlap policy", default="auto")
POLICY = _POLICY.get

TRIALS = 4


@contextlib.contextmanager
def overlap(policy: Policy) -> Iterator[None]:
    """Inside it, exchanges overlap with computation `always`, `never`, or where that was measured to pay: `auto`.

    Always means wherever a tile is more than a few thousand values.
    """
    if policy not in get_args(Policy):
        raise ValueError(f"overlap({policy!r}) is no policy; use one of {', '.join(get_args(Policy))}")
    token = _POLICY.set(policy)
    try:
        yield
    finally:
        _POLICY.reset(token)


@dataclass(frozen=True, eq=False)
class SplitOutputs:
    """The outputs of one rank: all of them from the tile alone, then the seams from what has arrived, too."""

    alone: Geometry
    seams: tuple[Geometry, ...]
    """Disjoint; the outputs outside of them are already right."""


@lru_cache(maxsize=4096)
def split(where: Geometry, reaches: tuple[Reach, ...]) -> SplitOutputs | None:
    """How an operator's outputs split, or None where the tile alone does not give outputs in the right places."""
    spec = where.source
    if not where.exchange or where.empty or spec.held != spec.box or not all(isinstance(r, Window) for r in reaches):
        return None
    right: list[Interval] = []
    padding: list[int] = []
    for d, reach in enumerate(reaches):
        assert isinstance(reach, Window)
        (first, last), (start, stop) = spec.box[d], where.out_box[d]
        pad = first - (start * reach.stride - reach.lo)
        if not 0 <= pad <= reach.kernel // 2 or Window(reach.kernel, reach.stride, pad, pad, reach.dilation).out_size(
            last - first
        ) != (stop - start):
            return None
        if first > 0:  # at the image's border padding is right, at a cut it is not
            start = -(-(first + reach.lo) // reach.stride)
        if last < spec.size[d]:
            stop = (last + reach.lo - reach.span) // reach.stride + 1
        if stop <= start:
            return None
        right.append((start, stop))
        padding.append(pad)
    seams: list[Box] = []
    for d, ((a, b), (start, stop)) in enumerate(zip(where.out_box, right)):
        for interval in ((a, start), (stop, b)):
            if interval[0] < interval[1]:
                seams.append((*right[:d], interval, *where.out_box[d + 1 :]))
    alone = replace(where, padding=tuple(padding), padded=spec.box, in_box=spec.box)
    return SplitOutputs(alone, tuple(_seam(where, reaches, seam) for seam in seams))


def _seam(where: Geometry, reaches: tuple[Reach, ...], out: Box) -> Geometry:
    padded = tuple(where.padded[d] if where.padding[d] else reach.needs(out[d]) for d, reach in enumerate(reaches))
    return replace(where, out_box=out, padded=padded, in_box=clip(padded, where.source.size))


@dataclass
class OverlapTrial:
    """The times of an operator both ways, on one geometry, until one of them has won."""

    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Without and with overlap."""
    winner: bool | None = None

    def next(self) -> bool:
        """Whether to overlap this time."""
        if self.winner is not None:
            return self.winner
        return len(self.seconds[1]) < len(self.seconds[0])

    def add(self, overlapped: bool, seconds: float) -> None:
        self.seconds[overlapped].append(seconds)
        if len(self.seconds[1]) >= TRIALS:
            # The first of each is slower for reasons of its own (memory, kernel choice).
            self.winner = min(self.seconds[1][1:]) < min(self.seconds[0][1:])


def worth_trying(way: SplitOutputs) -> bool:
    """Whether `auto` should measure this split at all: little must be computed twice."""
    again, outputs = sum(prod(shape(s.out_box)) for s in way.seams), prod(shape(way.alone.out_box))
    return 2 * again <= outputs


def trial(where: Geometry, key: tuple[Any, ...]) -> OverlapTrial:
    """The trial of an operator; it lives as long as the group's exchanger."""
    return where.source.exchanger.trials.setdefault((where, *key), OverlapTrial())


def now(tensor: Tensor) -> float:
    """The time when all work on the tensor's device is done; used in trials only."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()
