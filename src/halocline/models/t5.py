"""T5: an encoder and a decoder that learn biases by distance, with one token table for both and for the head. A plain
single-device model as a sequence of layers; each takes and returns the states of both, so that it can be cut anywhere.

    0 tokens    1 .. E encoder blocks    E + 1 .. E + 2 D halves of decoder blocks    E + 2 D + 1 final norm and head

Of a decoder block's halves the first attends to the decoder's own states and the second to the encoder's.

The table of biases is learned once for the encoder and once for the decoder. Each of their layers holds it, tied to the
first one's, and lays the biases out anew: they are far larger than the states and are better not sent along.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from halocline.models.model import SPANS, Model
from halocline.models.transformer import (
    SEQUENCE,
    VOCABULARY,
    Attention,
    Embedding,
    FeedForward,
    Layers,
    Linear,
    RelativePositions,
    Sizes,
    head_features,
    language_model,
)

States = tuple[Tensor, Tensor]
"""Of the encoder and of the decoder."""

ENCODER, SELF, CROSS = "encoder", "self", "cross"
"""What a layer is: a block of the encoder, or a half of one of the decoder."""
RELU, GATED_GELU = "relu", "gated-gelu"


@dataclass(frozen=True)
class T5(Sizes):
    """The sizes of a T5."""

    decoder_layers: int
    kv: int
    ff: int
    buckets: int
    furthest: int
    activation: str
    scaled: bool

    def __post_init__(self) -> None:
        if self.activation not in (RELU, GATED_GELU):
            raise ValueError(f"activation = {self.activation!r} is not T5's: use {RELU!r} or {GATED_GELU!r}")
        if self.layers < 1 or self.decoder_layers < 1:
            raise ValueError(
                f"layers = {self.layers} and decoder_layers = {self.decoder_layers}: use at least 1 of each"
            )
        if self.buckets < 4 or self.furthest <= self.buckets // 2:
            raise ValueError(
                f"buckets = {self.buckets} and furthest = {self.furthest} leave no room for ranges of distances: use 4 "
                f"buckets or more, and a furthest above half of them"
            )


def t5(
    *,
    layers: int = 6,
    decoder_layers: int | None = None,
    hidden: int = 512,
    heads: int = 8,
    vocab: int = 32128,
    seq: int = 512,
    wide: int = 1,
    kv: int | None = None,
    ff: int | None = None,
    buckets: int = 32,
    furthest: int = 128,
    activation: str = RELU,
    tied: bool = True,
    scaled: bool | None = None,
    dropout: float = 0.0,
    eps: float = 1e-6,
) -> Model:
    """An encoder and a decoder of `layers` blocks each, over `seq` tokens each.

    Inside, a block is `wide` times as wide as other models of its hidden size: heads have `kv` = wide x hidden / heads
    features and the feed-forward part `ff` = 4 x wide x hidden, unless they are given. `scaled` divides what enters the
    head by the root of hidden (default: if it is `tied` to the token table).
    """
    decoder_layers = layers if decoder_layers is None else decoder_layers
    kv = head_features(hidden, heads, wide) if kv is None else kv
    ff = 4 * wide * hidden if ff is None else ff
    scaled = tied if scaled is None else scaled
    sizes = decoder_layers, kv, ff, buckets, furthest, activation, scaled
    a = T5(layers, hidden, heads, vocab, tied, dropout, dropout, eps, *sizes)
    made: Layers = [
        ("embedding", partial(T5Tokens, a)),
        *[("encoder", partial(T5Block, a, ENCODER))] * (layers - 1),
        ("encoder", partial(T5Block, a, ENCODER, last=True)),
        *[("decoder", partial(T5Block, a, SELF)), ("decoder", partial(T5Block, a, CROSS))] * decoder_layers,
        ("head", partial(T5Head, a)),
    ]
    tables = [f"{layer}.attention.position.table.weight" for layer in range(1, layers + 2 * decoder_layers + 1)]
    biases = [(first, copy) for first, *copies in (tables[:layers], tables[layers::2]) for copy in copies]
    return language_model("t5", SPANS, a, seq, made, biases)


class T5Tokens(nn.Module):
    """The words of both sequences to features."""

    split: ClassVar[dict[str, str]] = {"tokens": VOCABULARY}

    def __init__(self, a: T5) -> None:
        super().__init__()
        self.tokens = Embedding(a.vocab, a.hidden, std=1.0)
        self.dropout = nn.Dropout(a.dropout)

    def forward(self, words: tuple[Tensor, Tensor]) -> States:
        source, target = words
        return self.dropout(self.tokens(source)), self.dropout(self.tokens(target))


class T5Block(nn.Module):
    """Attention and feed-forward, each after its norm and added to what came in: a block of the encoder, of which the
    last norms what the decoder will see, or half of one of the decoder. What a part does without is None."""

    split: ClassVar[dict[str, str]] = dict.fromkeys(("attention_norm", "feed_forward_norm", "final_norm"), SEQUENCE)

    def __init__(self, a: T5, part: str, last: bool = False) -> None:
        super().__init__()
        self.part, feeds = part, part != SELF
        position = None
        if part != CROSS:
            position = RelativePositions(a.heads, a.buckets, a.furthest, part == SELF, std=a.hidden**-0.5)
        self.attention_norm = nn.RMSNorm(a.hidden, a.eps)
        self.attention = Attention(a.hidden, a.heads, a.kv, position=position, dropout=a.dropout)
        self.feed_forward_norm = nn.RMSNorm(a.hidden, a.eps) if feeds else None
        self.feed_forward = _feed_forward(a) if feeds else None
        self.dropout = nn.Dropout(a.dropout)
        self.final_norm = nn.RMSNorm(a.hidden, a.eps) if last else None

    def forward(self, states: States) -> States:
        encoder, decoder = states
        x = encoder if self.part == ENCODER else decoder
        normed = self.attention_norm(x)
        x = x + self.dropout(self.attention(normed, encoder if self.part == CROSS else normed))
        if self.feed_forward_norm is not None and self.feed_forward is not None:
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        if self.final_norm is not None:
            x = self.dropout(self.final_norm(x))
        return (x, decoder) if self.part == ENCODER else (encoder, x)


class T5Head(nn.Module):
    """The decoder's final norm, then a score for each word."""

    split: ClassVar[dict[str, str]] = {"logits": VOCABULARY}

    def __init__(self, a: T5) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(a.hidden, a.eps)
        self.dropout = nn.Dropout(a.dropout)
        self.scale = a.hidden**-0.5 if a.scaled else 1.0
        self.logits = Linear(a.hidden, a.vocab, bias=False, std=1.0 if a.scaled else a.hidden**-0.5)

    def forward(self, states: States) -> Tensor:
        return self.logits(self.dropout(self.norm(states[1])) * self.scale)


def _feed_forward(a: T5) -> FeedForward:
    gated = a.activation == GATED_GELU
    activation = nn.GELU("tanh") if gated else nn.ReLU()
    std, down = a.hidden**-0.5, a.ff**-0.5
    return FeedForward(a.hidden, a.ff, activation, bias=False, gated=gated, dropout=a.dropout, std=std, down_std=down)
