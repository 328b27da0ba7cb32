"""Bloom: GPT's blocks with a bias by distance (ALiBi) in place of learned positions, and a norm after the tokens.

0 tokens and norm    1 .. L blocks    L + 1 final norm and head
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from halocline.models.gpt import GptBlock, GptHead, GptTokens
from halocline.models.model import CAUSAL, Model
from halocline.models.transformer import Alibi, FeedForward, Layers, SelfAttention, Sizes, language_model


@dataclass(frozen=True)
class Bloom(Sizes):
    """The sizes of a Bloom; its feed-forward part is 4 x hidden wide."""


def bloom(
    *,
    layers: int = 30,
    hidden: int = 2560,
    heads: int = 32,
    vocab: int = 250880,
    seq: int = 1024,
    tied: bool = True,
    dropout: float = 0.0,
    attention_dropout: float | None = None,
    eps: float = 1e-5,
) -> Model:
    """A causal language model for sequences of any length."""
    attention_dropout = dropout if attention_dropout is None else attention_dropout
    a = Bloom(layers, hidden, heads, vocab, tied, dropout, attention_dropout, eps)
    made: Layers = [
        ("embedding", partial(NormedTokens, vocab, hidden, eps)),
        *[("block", partial(block, a))] * layers,
        ("head", partial(GptHead, hidden, vocab, eps)),
    ]
    return language_model("bloom", CAUSAL, a, seq, made)


class NormedTokens(GptTokens):
    """Words to features, which start as large as a block's."""

    def __init__(self, vocab: int, hidden: int, eps: float) -> None:
        super().__init__(vocab, hidden)
        self.norm = nn.LayerNorm(hidden, eps)

    def forward(self, words: Tensor) -> Tensor:
        return self.norm(self.tokens(words))


def block(a: Bloom) -> GptBlock:
    """Bloom's."""
    return GptBlock(
        a.hidden,
        SelfAttention(a.hidden, a.heads, causal=True, position=Alibi(a.heads), dropout=a.attention_dropout),
        FeedForward(a.hidden, 4 * a.hidden, nn.GELU("tanh")),
        a.dropout,
        a.eps,
    )
