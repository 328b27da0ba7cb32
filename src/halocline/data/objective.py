"""What a language model is asked: the next token, hidden tokens, or spans cut out of a text. Arrays in, arrays out.

Every sample has the same number of targets that count, so that the mean over a batch is the mean over its
microbatches, however it is cut.

    causal    a b c d e       ->  a b c d             targets  b c d e
    masked    a b c d         ->  a # c d             targets  . b . .
    spans     a b c d e f g   ->  a b <0> e f <1> $   decoder  ^ <0> c d <1> g    targets  <0> c d <1> g $
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halocline.data import chance
from halocline.data.dataset import IGNORED
from halocline.data.special import Specials

SHARE = 0.15
"""Of the tokens are hidden or cut out (BERT, T5)."""
HIDDEN, REPLACED = 0.8, 0.1
"""Of the tokens asked for, shown as the mask and as a token of chance; the rest is shown as it is (BERT)."""
SPAN = 3
"""Tokens of a span, on average (T5)."""

_WHERE, _HOW, _TOKEN, _KEPT, _CUT = chance.purposes("objective", 5)

Tokens = NDArray[np.int64]


def causal(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Input and target of one token fewer."""
    return tokens[:-1], tokens[1:]


def masked(tokens: Tokens, specials: Specials, draw: int) -> tuple[Tokens, Tokens]:
    """Input and target; which tokens are asked for, and how they are shown, follows from `draw`."""
    size = len(tokens)
    asked = chance.permutation(size, draw, _WHERE)[: max(1, round(size * SHARE))]
    how = _uniform(chance.key(draw, _HOW), len(asked))
    other = (_uniform(chance.key(draw, _TOKEN), len(asked)) * specials.ordinary).astype(np.int64)
    target = np.full(size, IGNORED, np.int64)
    target[asked] = tokens[asked]
    shown = tokens.copy()
    shown[asked] = np.where(how < HIDDEN, specials.mask, np.where(how < HIDDEN + REPLACED, other, tokens[asked]))
    return shown, target


def span_counts(length: int, sentinels: int) -> tuple[int, int]:
    """How many tokens are cut out of a text of `length`, in how many spans."""
    cut = min(max(1, round(length * SHARE)), length - 1)
    return cut, max(1, min(round(cut / SPAN), sentinels, length - cut))


def span_length(encoder: int, sentinels: int) -> int:
    """The length of a text that fills the encoder once its spans are cut out. One token more in the text is none or
    one more in the encoder, so it can be filled exactly."""
    length = encoder // 2
    while True:
        cut, spans = span_counts(length + 1, sentinels)
        if length + 1 - cut + spans + 1 > encoder:
            return length
        length += 1


def spans(tokens: Tokens, specials: Specials, draw: int, encoder: int, decoder: int) -> tuple[Tokens, Tokens, Tokens]:
    """Encoder input, decoder input and target of the lengths given."""
    cut, count = span_counts(len(tokens), len(specials.sentinels))
    kept_lengths = _parts(len(tokens) - cut, count, chance.key(draw, _KEPT))
    cut_lengths = _parts(cut, count, chance.key(draw, _CUT))
    shown: list[Tokens] = []
    asked: list[Tokens] = []
    place = 0
    for sentinel, kept, gone in zip(specials.sentinels, kept_lengths, cut_lengths):
        mark = np.array([sentinel])
        shown += [tokens[place : place + kept], mark]
        asked += [mark, tokens[place + kept : place + kept + gone]]
        place += kept + gone
    end = np.array([specials.end])
    seen = np.concatenate([*shown, end])
    target = np.concatenate([*asked, end])
    assert len(seen) <= encoder and len(target) <= decoder
    heard = np.concatenate([[specials.start], target[:-1]])
    return (
        _filled(seen, encoder, specials.start),
        _filled(heard, decoder, specials.start),
        _filled(target, decoder, IGNORED),
    )


def _parts(total: int, count: int, draw: int) -> NDArray[np.int64]:
    """A way of chance to write `total` as a sum of `count` numbers above 0."""
    cuts = np.sort(chance.permutation(total - 1, draw)[: count - 1]) + 1
    return np.diff([0, *cuts, total])


def _filled(tokens: Tokens, length: int, value: int) -> Tokens:
    result = np.full(length, value, np.int64)
    result[: len(tokens)] = tokens
    return result


def _uniform(start: int, count: int) -> NDArray[np.float64]:
    return (chance.words(start, np.arange(count)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
