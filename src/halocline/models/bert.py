"""BERT with its masked-language head: embeddings, blocks with the norm after each part, and a head that shares the
token table. A plain single-device model as a sequence of layers.

    0 embeddings    1 .. L blocks    L + 1 head

Every sample is taken as one sentence without padding: all its tokens are of the first type and see each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from halocline.models.model import MASKED, Model
from halocline.models.transformer import (
    SEQUENCE,
    VOCABULARY,
    Embedding,
    FeedForward,
    Linear,
    SelfAttention,
    Sizes,
    language_model,
    longest,
)


@dataclass(frozen=True)
class Bert(Sizes):
    """The sizes of a BERT."""

    positions: int
    types: int
    ff: int
    padding: int


def bert(
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocab: int = 30522,
    seq: int = 512,
    positions: int | None = None,
    types: int = 2,
    ff: int | None = None,
    tied: bool = True,
    padding: int = 0,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    eps: float = 1e-12,
) -> Model:
    """A masked language model. `positions` (default `seq`) is the longest sequence it can take, `types` the rows of the
    sentence-type table, `ff` (default 4 x hidden) the width of the feed-forward part, `tied` says whether the head is
    the token table; the row of the word `padding` in that table learns from the head only (-1: there is none)."""
    ff = 4 * hidden if ff is None else ff
    attention_dropout = dropout if attention_dropout is None else attention_dropout
    positions = longest(seq, positions)
    a = Bert(layers, hidden, heads, vocab, tied, dropout, attention_dropout, eps, positions, types, ff, padding)
    blocks = [("block", partial(BertBlock, a))] * layers
    return language_model(
        "bert", MASKED, a, seq, [("embedding", partial(Embeddings, a)), *blocks, ("head", partial(BertHead, a))]
    )


class Embeddings(nn.Module):
    """Words, their positions and their sentence's type to features."""

    split: ClassVar[dict[str, str]] = {"tokens": VOCABULARY}

    def __init__(self, a: Bert) -> None:
        super().__init__()
        self.padding = a.padding
        self.tokens = Embedding(a.vocab, a.hidden)
        self.positions = Embedding(a.positions, a.hidden)
        self.types = Embedding(a.types, a.hidden)
        self.norm = nn.LayerNorm(a.hidden, a.eps)
        self.dropout = nn.Dropout(a.dropout)

    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words)
        if self.padding >= 0:
            # Not the table's own padding_idx, which counts rows of the whole table and not of a part of it.
            x = torch.where((words == self.padding).unsqueeze(-1), x.detach(), x)
        place = self.positions(torch.arange(words.shape[1], device=words.device))
        kind = self.types(torch.zeros(1, dtype=torch.int64, device=words.device))
        return self.dropout(self.norm(x + place + kind))


class BertBlock(nn.Module):
    """Attention and feed-forward, each added to what came in and then normed."""

    split: ClassVar[dict[str, str]] = {"attention_norm": SEQUENCE, "feed_forward_norm": SEQUENCE}

    def __init__(self, a: Bert) -> None:
        super().__init__()
        self.attention = SelfAttention(a.hidden, a.heads, dropout=a.attention_dropout)
        self.attention_norm = nn.LayerNorm(a.hidden, a.eps)
        self.feed_forward = FeedForward(a.hidden, a.ff, nn.GELU())
        self.feed_forward_norm = nn.LayerNorm(a.hidden, a.eps)
        self.dropout = nn.Dropout(a.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class BertHead(nn.Module):
    """One more dense layer, then a score for each word."""

    split: ClassVar[dict[str, str]] = {"logits": VOCABULARY}

    def __init__(self, a: Bert) -> None:
        super().__init__()
        self.dense = Linear(a.hidden, a.hidden)
        self.activation = nn.GELU()
        self.norm = nn.LayerNorm(a.hidden, a.eps)
        self.logits = Linear(a.hidden, a.vocab)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(self.activation(self.dense(x))))
