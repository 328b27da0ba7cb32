"""Whether an operator computes what needs no halo while the halo travels, and which part that is.

    out   [ . . . . | . . . . ]     tile 0 computes its first outputs at once, and the one at the cut when
    tile 0 [= = = +]                the neighbour's strip has arrived: "=" is the interior, "+" a seam

It costs a copy of the output and a small operator per seam, so it does not always pay: the policy `auto` tries both
ways in the first calls of each geometry and keeps the faster one. Ranks choose for themselves: the messages are the
same either way. Knows nothing of gradients.
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

SMALLEST = 1 << 16
"""Output values below which `auto` does not try: there the seams cost more than any message (tiling_speed.py)."""
TRIALS = 4


@contextlib.contextmanager
def overlap(policy: Policy) -> Iterator[None]:
    """Inside it, exchanges overlap with computation `always`, `never`, or where that was measured to pay: `auto`."""
    if policy not in get_args(Policy):
        raise ValueError(f"overlap({policy!r}) is no policy; use one of {', '.join(get_args(Policy))}")
    token = _POLICY.set(policy)
    try:
        yield
    finally:
        _POLICY.reset(token)


@dataclass(frozen=True, eq=False)
class Split:
    """The outputs of one rank as an interior, computed from the tile alone, and seams."""

    interior: Geometry
    seams: tuple[Geometry, ...]


@lru_cache(maxsize=4096)
def split(where: Geometry, reaches: tuple[Reach, ...]) -> Split | None:
    """How an operator's outputs split, or None where nothing can be computed before the halo arrives."""
    if not where.exchange or where.empty or not all(isinstance(r, Window) for r in reaches):
        return None
    inside: list[Interval] = []
    for d, reach in enumerate(reaches):
        assert isinstance(reach, Window)
        own, out = where.source.box[d], where.out_box[d]
        if where.padding[d]:  # the operator pads this dim itself: take all of it or nothing
            if not (own[0] <= where.in_box[d][0] and where.in_box[d][1] <= own[1]):
                return None
            inside.append(out)
            continue
        start = max(out[0], -(-(own[0] + reach.lo) // reach.stride))
        stop = min(out[1], (own[1] + reach.lo - reach.span) // reach.stride + 1)
        if stop <= start:
            return None
        inside.append((start, stop))
    seams: list[Box] = []
    for d, ((a, b), (start, stop)) in enumerate(zip(where.out_box, inside)):
        for interval in ((a, start), (stop, b)):
            if interval[0] < interval[1]:
                seams.append((*inside[:d], interval, *where.out_box[d + 1 :]))
    return Split(_part(where, reaches, tuple(inside)), tuple(_part(where, reaches, seam) for seam in seams))


def _part(where: Geometry, reaches: tuple[Reach, ...], out: Box) -> Geometry:
    """The same operator for some of its outputs only."""
    padded = tuple(where.padded[d] if where.padding[d] else reach.needs(out[d]) for d, reach in enumerate(reaches))
    return replace(where, out_box=out, padded=padded, in_box=clip(padded, where.source.size))


@dataclass
class Trial:
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


def worth_trying(way: Split, out_values: int) -> bool:
    """Whether `auto` should measure this split at all."""
    interior, outputs = prod(shape(way.interior.out_box)), prod(shape(way.interior.out.held))
    return out_values >= SMALLEST and 2 * interior >= outputs


def pays_in_backward(policy: Policy, grad: Tensor) -> bool:
    """Whether the halo's gradients travel while the parameters' are computed: no more work, but one more call."""
    return policy == "always" or (policy == "auto" and grad.numel() >= SMALLEST)


def trial(where: Geometry, key: tuple[Any, ...]) -> Trial:
    """The trial of an operator; it lives as long as the group's exchanger."""
    return where.source.exchanger.trials.setdefault((where, *key), Trial())


def now(tensor: Tensor) -> float:
    """The time when all work on the tensor's device is done; used in trials only."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()
