"""What attention adds to its scores by the distance of two tokens: T5's relative positions and Bloom's ALiBi.

A bias depends on key - query alone, so it is made for the 2S - 1 distances of S tokens and then laid out as
(1, H, S, S) for H heads. A causal bias is -inf for the keys that lie ahead, and no mask is needed beside it.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from halocline.models.initial import Embedding
from halocline.models.split import COLUMN, HEADS


class RelativePositions(nn.Module):
    """A learned bias per head for each range of distances: one distance each when near, ever wider ranges up to
    `furthest`, and one for all beyond (Raffel et al. 2020, section 2.1)."""

    split: ClassVar[dict[str, str]] = {"table": COLUMN}

    def __init__(self, heads: int, buckets: int, furthest: int, causal: bool, std: float) -> None:
        super().__init__()
        self.causal, self.buckets, self.furthest = causal, buckets, furthest
        self.table = Embedding(buckets, heads, std)

    def forward(self, tokens: int, dtype: torch.dtype) -> Tensor:
        distance = _distances(tokens, self.table.weight.device)
        values = self.table(self._bucket(distance)).T.to(dtype)
        if self.causal:
            values = values.masked_fill(distance > 0, -math.inf)
        return _by_distance(values, tokens)

    def _bucket(self, distance: Tensor) -> Tensor:
        """Half of the buckets are for keys ahead, unless there are none; of each half, half for single distances."""
        half = self.buckets if self.causal else self.buckets // 2
        ahead = distance > 0
        apart = distance.masked_fill(ahead, 0).neg() if self.causal else distance.abs()
        single = half // 2
        # In float32 whatever the weights are, so that a distance on the edge of a range is always on the same side.
        growth = torch.log(apart.float() / single) / math.log(self.furthest / single)
        wide = (single + (growth * (half - single)).clamp(min=0).long()).clamp(max=half - 1)
        bucket = torch.where(apart < single, apart, wide)
        return bucket if self.causal else bucket + half * ahead


class Alibi(nn.Module):
    """A causal bias that falls with distance, at a fixed slope per head (Press et al. 2022)."""

    split: ClassVar[dict[str, str]] = {"head": HEADS}

    head: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        """Of the whole model; `head` counts those that are here."""
        self.register_buffer("head", torch.arange(heads), persistent=False)

    def reset_parameters(self) -> None:
        torch.arange(self.heads, out=self.head)

    def forward(self, tokens: int, dtype: torch.dtype) -> Tensor:
        distance = _distances(tokens, self.head.device)
        values = self._slopes()[:, None] * distance
        return _by_distance(values.masked_fill(distance > 0, -math.inf).to(dtype), tokens)

    def _slopes(self) -> Tensor:
        """2^(-8 n / N) for the n-th of N heads; if N is no power of two, the heads beyond the largest one in it take
        the odd steps of a series twice as fine."""
        power = 2 ** int(math.log2(self.heads))
        head = self.head.double()
        exponent = torch.where(self.head < power, 8 * (head + 1) / power, 4 * (2 * (head - power) + 1) / power)
        return torch.exp2(-exponent)


def _distances(tokens: int, device: torch.device) -> Tensor:
    """Key - query, from the last query's first key to the first query's last key."""
    return torch.arange(1 - tokens, tokens, device=device)


def _by_distance(values: Tensor, tokens: int) -> Tensor:
    """(H, 2S - 1), a value per distance, laid out as (1, H, query, key)."""
    return values.unfold(-1, tokens, 1).flip(-2).unsqueeze(0)
