"""GPT-2 and its larger relatives: tokens, positions, blocks with the norm before each part, and a head that shares the
token table. A plain single-device model as a sequence of layers.

    0 tokens    1 positions    2 .. L + 1 blocks    L + 2 final norm and head
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from halocline.models.model import CAUSAL, Model
from halocline.models.transformer import (
    SEQUENCE,
    STD,
    VOCABULARY,
    Embedding,
    FeedForward,
    Layers,
    Linear,
    SelfAttention,
    Sizes,
    language_model,
    longest,
)


@dataclass(frozen=True)
class Gpt(Sizes):
    """The sizes of a GPT."""

    positions: int
    ff: int

    @property
    def residual_std(self) -> float:
        """What adds to the residual starts smaller, the more of it there is: two parts of each block."""
        return STD / (2 * max(self.layers, 1)) ** 0.5


def gpt(
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocab: int = 50257,
    seq: int = 1024,
    positions: int | None = None,
    ff: int | None = None,
    tied: bool = True,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    eps: float = 1e-5,
) -> Model:
    """A causal language model. `positions` (default `seq`) is the longest sequence it can take, `ff` (default 4 x
    hidden) the width of the feed-forward part, `tied` says whether the head is the token table."""
    ff = 4 * hidden if ff is None else ff
    attention_dropout = dropout if attention_dropout is None else attention_dropout
    positions = longest(seq, positions)
    a = Gpt(layers, hidden, heads, vocab, tied, dropout, attention_dropout, eps, positions, ff)
    made: Layers = [
        ("embedding", partial(GptTokens, vocab, hidden)),
        ("embedding", partial(Positions, positions, hidden, dropout)),
        *[("block", partial(block, a))] * layers,
        ("head", partial(GptHead, hidden, vocab, eps)),
    ]
    return language_model("gpt", CAUSAL, a, seq, made)


class GptTokens(nn.Module):
    """Words to features."""

    split: ClassVar[dict[str, str]] = {"tokens": VOCABULARY}

    def __init__(self, vocab: int, hidden: int) -> None:
        super().__init__()
        self.tokens = Embedding(vocab, hidden)

    def forward(self, words: Tensor) -> Tensor:
        return self.tokens(words)


class Positions(nn.Module):
    """Adds what is learned of each position."""

    def __init__(self, positions: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.positions = Embedding(positions, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.positions(torch.arange(x.shape[1], device=x.device)))


class GptBlock(nn.Module):
    """Attention and feed-forward, each after its norm and added to what came in."""

    split: ClassVar[dict[str, str]] = {"attention_norm": SEQUENCE, "feed_forward_norm": SEQUENCE}

    def __init__(
        self, hidden: int, attention: SelfAttention, feed_forward: FeedForward, dropout: float, eps: float
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden, eps)
        self.attention = attention
        self.feed_forward_norm = nn.LayerNorm(hidden, eps)
        self.feed_forward = feed_forward
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


def block(a: Gpt) -> GptBlock:
    """GPT-2's."""
    std = a.residual_std
    return GptBlock(
        a.hidden,
        SelfAttention(a.hidden, a.heads, causal=True, dropout=a.attention_dropout, out_std=std),
        FeedForward(a.hidden, a.ff, nn.GELU("tanh"), down_std=std),
        a.dropout,
        a.eps,
    )


class GptHead(nn.Module):
    """The final norm, then a score for each word."""

    split: ClassVar[dict[str, str]] = {"logits": VOCABULARY}

    def __init__(self, hidden: int, vocab: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden, eps)
        self.logits = Linear(hidden, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))
