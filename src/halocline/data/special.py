"""The ids of a vocabulary that stand for no text: masks, sentinels, starts and ends, by what an objective needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CAUSAL, MASKED, SPANS = "causal", "masked", "spans"
OBJECTIVES = (CAUSAL, MASKED, SPANS)
"""What a language model may be asked: `objective` says how."""

SENTINELS = 100
"""As many as T5 has."""

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
