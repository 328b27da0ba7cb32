"""Opens text, or generated tokens, for an objective: which ids are special, and how long a sample's window is."""

from __future__ import annotations

from pathlib import Path

from halocline.data.objective import span_length
from halocline.data.special import CAUSAL, MASKED, OBJECTIVES, SPANS, Specials, placed_above, specials_of
from halocline.data.text import BYTES, TextWindows, load_tokenizer, text_files
from halocline.data.tokens import Sequences, SyntheticTokens, TokenSource

DISTINCT = 64
"""Ordinary tokens of generated sequences: few enough for their rule to be learnt soon."""


def open_corpus(
    root: Path | None,
    *,
    objective: str,
    sequence: int,
    vocabulary: int,
    tokenizer: str | Path | None = None,
    split: str,
    samples: int,
    seed: int,
) -> tuple[Sequences, bool]:
    """The sequences of the text at `root`, or `samples` generated ones where that is None, and whether the text is
    split already."""
    if objective not in OBJECTIVES:
        raise ValueError(f"{objective!r} is not an objective: use {', '.join(OBJECTIVES)}")
    source: TokenSource
    is_split = False
    if root is None:
        ordinary = min(DISTINCT, {CAUSAL: vocabulary, MASKED: vocabulary - 1, SPANS: vocabulary // 2}[objective])
        specials = placed_above(max(2, ordinary), objective, vocabulary, "generated text")
        length, _ = _window(objective, sequence, specials)
        source = SyntheticTokens(samples, length, specials.ordinary, seed)
    else:
        paths, is_split = text_files(root, split)
        encoder = None if tokenizer is None else load_tokenizer(tokenizer)
        if encoder is None:
            specials = placed_above(BYTES, objective, vocabulary, "text as bytes")
        else:
            specials = specials_of(encoder, objective, vocabulary)
        source = TextWindows(paths, *_window(objective, sequence, specials), encoder, vocabulary)
    return Sequences(
        source, specials, objective=objective, sequence=sequence, vocabulary=vocabulary, seed=seed
    ), is_split


def _window(objective: str, sequence: int, specials: Specials) -> tuple[int, int]:
    """How many tokens of a text make a sample, and how many of them are not in the next one too."""
    shortest = 8 if objective == SPANS else 1
    if sequence < shortest:
        raise ValueError(f"a sequence of {sequence} tokens is too short for {objective}: use {shortest} or more")
    if objective == CAUSAL:
        return sequence + 1, sequence
    if objective == SPANS:
        length = span_length(sequence, len(specials.sentinels))
        return length, length
    return sequence, sequence
