"""Attention with several heads, of a sequence to itself or to another, by PyTorch's fused kernel.

Shapes: B samples, S tokens, H heads that are here, D features of a head. H is never written down: it follows from the
tensors, so that a holder of some of the heads runs the same code.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.initial import STD, Linear
from halocline.models.split import COLUMN, ROW


def head_features(hidden: int, heads: int, wide: int = 1) -> int:
    """D, the features of a head, where all heads together have `wide` x hidden."""
    if min(hidden, heads, wide) < 1:
        raise ValueError(f"hidden = {hidden} among heads = {heads}: use at least 1 of each")
    if wide * hidden % heads:
        step = heads // math.gcd(heads, wide)
        near = max(round(hidden / step), 1) * step
        what = f"hidden = {hidden}" if wide == 1 else f"{wide} x hidden = {wide} x {hidden}"
        raise ValueError(f"{what} does not divide among heads = {heads}: use hidden = {near}, or other heads")
    return wide * hidden // heads


class SelfAttention(nn.Module):
    """Each token asks all tokens of its sequence, or with `causal` those up to itself.

    `position`, a module of `position_bias`, adds to the scores; it must be causal by itself.
    """

    split: ClassVar[dict[str, str]] = {"qkv": COLUMN, "out": ROW}

    def __init__(
        self,
        hidden: int,
        heads: int,
        *,
        causal: bool = False,
        position: nn.Module | None = None,
        dropout: float = 0.0,
        out_std: float = STD,
    ) -> None:
        super().__init__()
        self.head_features = head_features(hidden, heads)
        self.causal, self.dropout = causal, dropout
        # One matrix, each head's query, key and value side by side: a slice of its rows holds whole heads.
        self.qkv = Linear(hidden, 3 * hidden)
        self.out = Linear(hidden, hidden, std=out_std)
        self.position = position

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, 3, self.head_features))
        query, key, value = qkv.transpose(1, 2).unbind(-2)  # each (B, H, S, D)
        bias = self.position(x.shape[1], query.dtype) if self.position is not None else None
        causal = self.causal and bias is None
        p = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, bias, dropout_p=p, is_causal=causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Attention(nn.Module):
    """T5's: queries of one sequence, keys and values of the same or another; no biases, scores not scaled, heads of any
    width."""

    split: ClassVar[dict[str, str]] = {"query": COLUMN, "key": COLUMN, "value": COLUMN, "out": ROW}

    def __init__(
        self, hidden: int, heads: int, features: int, *, position: nn.Module | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        inner = heads * features
        self.head_features, self.dropout = features, dropout
        self.position = position
        # Queries start smaller by the root of D, in place of scaling the scores.
        self.query = Linear(hidden, inner, bias=False, std=(hidden * features) ** -0.5)
        self.key = Linear(hidden, inner, bias=False, std=hidden**-0.5)
        self.value = Linear(hidden, inner, bias=False, std=hidden**-0.5)
        self.out = Linear(inner, hidden, bias=False, std=inner**-0.5)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        query, key, value = self._heads(self.query(x)), self._heads(self.key(source)), self._heads(self.value(source))
        bias = self.position(x.shape[1], query.dtype) if self.position is not None else None
        p = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, bias, dropout_p=p, scale=1.0)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_features)).transpose(1, 2)
