"""What transformers are made of: attention, feed-forward parts, biases by distance, and the words in which each module
says how its weights may be divided by heads, features or words of the vocabulary.

A module's class carries `split`, from the name of a direct child (or buffer) to one of these words; what it does not
name every holder has whole. A child that is None (a gate that a model does without) is passed over. Plain data: nothing
here knows who divides, or among how many.

    class SelfAttention(nn.Module):
        split: ClassVar[dict[str, str]] = {"qkv": COLUMN, "out": ROW}

Shapes: B samples, S tokens, H heads that are here, D features of a head. H is never written down: it follows from the
tensors, so that a holder of some of the heads runs the same code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.losses import token_loss
from halocline.models.model import Model

COLUMN = "column"
"""A Linear's output features, bias included; of an Embedding the features of each row. Consecutive features belong to
the same head, so any cut at whole heads is a plain slice."""
ROW = "row"
"""A Linear's input features; holders' outputs are summed and the bias is added once."""
VOCABULARY = "vocabulary"
"""An Embedding's rows, or the output features of the Linear that makes logits, bias included: one per word."""
HEADS = "heads"
"""A buffer with one entry per head, along its first dim."""
SEQUENCE = "sequence"
"""A norm of a block that sees each token alone, as does all else in the block but for the children that are divided by
the words above: between those, a holder may have some of the tokens."""

STD = 0.02
"""GPT-2's, BERT's and Bloom's width."""


@dataclass(frozen=True)
class Sizes:
    """What transformers are made from; each adds its own."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    tied: bool
    dropout: float
    attention_dropout: float
    eps: float

    def __post_init__(self) -> None:
        head_features(self.hidden, self.heads)


Layers = list[tuple[str, Callable[[], nn.Module]]]
"""What makes each layer of a model, and what the layer is: embedding, block (or encoder, decoder) or head."""


def language_model(
    name: str, task: str, a: Sizes, seq: int, layers: Layers, tied: Sequence[tuple[str, str]] = ()
) -> Model:
    """A model for sequences of `seq` tokens. Where `a` says so, the head is the token table; `tied` is what else is."""
    head = [("0.tokens.weight", f"{len(layers) - 1}.logits.weight")] if a.tied else []
    made, kinds = [layer for _, layer in layers], tuple(kind for kind, _ in layers)
    return Model(name, made, task, token_loss, a.vocab, sequence=seq, tied=(*head, *tied), kinds=kinds, architecture=a)


def longest(seq: int, positions: int | None) -> int:
    """The positions that a model of sequences of `seq` tokens learns: those asked for, or as many."""
    if positions is not None and seq > positions:
        raise ValueError(f"seq = {seq} is longer than positions = {positions}: use seq <= {positions}")
    return seq if positions is None else positions


class Linear(nn.Linear):
    """Starts from a normal distribution of a given width, biases from zero. The values are drawn once, by
    `reset_parameters`: a layer of a large model is not filled twice."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, std: float = STD) -> None:
        self.std = std
        super().__init__(inputs, outputs, bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """A table with a row for each word or position."""

    def __init__(self, rows: int, features: int, std: float = STD) -> None:
        self.std = std
        super().__init__(rows, features)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


# -- attention -----------------------------------------------------------------------------------------------------


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

    `position`, a bias by distance, adds to the scores; it must be causal by itself.
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


class FeedForward(nn.Module):
    """The part of a block that sees each token alone: down(activation(up(x))), or with `gated`
    down(activation(gate(x)) * up(x))."""

    split: ClassVar[dict[str, str]] = {"gate": COLUMN, "up": COLUMN, "down": ROW}

    def __init__(
        self,
        hidden: int,
        ff: int,
        activation: nn.Module,
        *,
        bias: bool = True,
        gated: bool = False,
        dropout: float = 0.0,
        std: float = STD,
        down_std: float = STD,
    ) -> None:
        super().__init__()
        self.gate = Linear(hidden, ff, bias, std) if gated else None
        self.up = Linear(hidden, ff, bias, std)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.down = Linear(ff, hidden, bias, down_std)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        return self.down(self.dropout(wide))


# -- biases by distance --------------------------------------------------------------------------------------------
# What attention adds to its scores by key - query alone is made for the 2S - 1 distances of S tokens and then laid out
# as (1, H, S, S). A causal bias is -inf for the keys that lie ahead, and no mask is needed beside it.


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
