"""What a language model is asked: the next token, hidden tokens, or spans cut out of a text. Arrays in, arrays out.

Every sample has the same number of targets that count, so that the mean over a batch is the mean over its
microbatches, however it is cut.

    causal    a b c d e       ->  a b c d             targets  b c d e
    masked    a b c d         ->  a # c d             targets  . b . .
    spans     a b c d e f g   ->  a b <0> e f <1> $   decoder  ^ <0> c d <1> g    targets  <0> c d <1> g $
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocline.data import chance
from halocline.data.dataset import IGNORED

CAUSAL, MASKED, SPANS = "causal", "masked", "spans"
OBJECTIVES = (CAUSAL, MASKED, SPANS)
"""What a language model may be asked."""

SENTINELS = 100
"""As many as T5 has."""

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
    return np.pad(tokens, (0, length - len(tokens)), constant_values=value)


def _uniform(start: int, count: int) -> NDArray[np.float64]:
    return (chance.words(start, np.arange(count)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


# -- ids that stand for no text --------------------------------------------------------------------------------------

_MASKS = ("[MASK]", "<mask>")
_PADS = ("<pad>", "[PAD]")
_ENDS = ("</s>", "[SEP]", "<|endoftext|>")


@dataclass(frozen=True)
class Specials:
    """The ids that stand for no text; `ordinary` ids, from 0 on, do."""

    ordinary: int
    mask: int = -1
    start: int = -1
    """Before the decoder's first token, and after its last where a sample ends early."""
    end: int = -1
    sentinels: tuple[int, ...] = ()
    """What stands where spans were cut out, in this order."""


def placed_above(ordinary: int, objective_name: str, vocabulary: int, what: str) -> Specials:
    """Special ids right above the ordinary ones, as many as the objective needs."""
    needed = {CAUSAL: 0, MASKED: 1, SPANS: 3}.get(objective_name, 0)
    if ordinary + needed > vocabulary:
        raise ValueError(
            f"{what} has {ordinary} tokens, and {objective_name} needs {needed} more, but the model's vocabulary has "
            f"{vocabulary}: use a vocabulary of {ordinary + needed} or more"
        )
    if objective_name == MASKED:
        return Specials(ordinary, mask=ordinary)
    if objective_name == SPANS:
        sentinels = range(ordinary + 2, min(vocabulary, ordinary + 2 + SENTINELS))
        return Specials(ordinary, start=ordinary, end=ordinary + 1, sentinels=tuple(sentinels))
    return Specials(ordinary)


def specials_of(tokenizer: Any, objective: str, vocabulary: int) -> Specials:
    """The special ids an objective needs: the tokenizer's own where it has them, else ids above its tokens."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)

    def first(names: tuple[str, ...]) -> int | None:
        return next((i for name in names if (i := tokenizer.token_to_id(name)) is not None), None)

    if objective == MASKED and (mask := first(_MASKS)) is not None:
        return Specials(_within(size, vocabulary), mask=mask)
    if objective == SPANS:
        start, end = first(_PADS), first(_ENDS)
        sentinels = [tokenizer.token_to_id(f"<extra_id_{number}>") for number in range(100)]
        own = tuple(i for i in sentinels if i is not None)
        if start is not None and end is not None and own:
            return Specials(_within(size, vocabulary), start=start, end=end, sentinels=own)
    return placed_above(size, objective, vocabulary, "the tokenizer")


def _within(size: int, vocabulary: int) -> int:
    if size > vocabulary:
        raise ValueError(
            f"the tokenizer has {size} tokens, the model's vocabulary {vocabulary}: use a vocabulary of {size} or more"
        )
    return size
