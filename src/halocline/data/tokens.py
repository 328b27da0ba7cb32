"""Token sequences as a language model takes them: windows of a text, or generated ones, with an objective's targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from halocline.data import chance, objective
from halocline.data.dataset import INPUT, TARGET, Spec
from halocline.data.objective import Tokens
from halocline.data.special import CAUSAL, MASKED, SPANS, Specials
from halocline.tiling.boxes import Box

_TOKENS, _JUMPS, _DRAW = chance.purposes("tokens", 3)


class TokenSource(Protocol):
    """Windows of tokens, all of one length."""

    def __len__(self) -> int: ...

    def tokens(self, sample: int) -> Tokens: ...


@dataclass(frozen=True)
class SyntheticTokens:
    """Generated sequences with a rule to learn: each token follows from the one before, but one in ten is of chance."""

    samples: int
    length: int
    ordinary: int
    seed: int = 0

    def __len__(self) -> int:
        return self.samples

    def tokens(self, sample: int) -> Tokens:
        places = np.arange(self.length)
        drawn = chance.words(chance.key(self.seed, _TOKENS, sample), places) % np.uint64(self.ordinary)
        jumps = chance.words(chance.key(self.seed, _JUMPS, sample), places) % np.uint64(10) == 0
        jumps[0] = True
        last = np.maximum.accumulate(np.where(jumps, places, 0))
        return (drawn[last].astype(np.int64) + 7 * (places - last)) % self.ordinary


class Sequences:
    """A dataset of tokens. Inputs and targets have `sequence` tokens (with spans, encoder and decoder have)."""

    def __init__(
        self, source: TokenSource, specials: Specials, *, objective: str, sequence: int, vocabulary: int, seed: int = 0
    ) -> None:
        self.source = source
        self.specials = specials
        self.objective = objective
        self.sequence = sequence
        self.seed = seed
        self.classes = vocabulary
        spec = Spec((sequence,), torch.int64)
        self.inputs = (spec, spec) if objective == SPANS else (spec,)
        self.targets = (spec,)

    @property
    def bytes_read(self) -> int:
        return getattr(self.source, "bytes_read", 0)

    def __len__(self) -> int:
        return len(self.source)

    def read(self, sample: int, what: str, box: Box | None = None, *, part: int = 0, epoch: int = 0) -> Tensor:
        tokens = self.source.tokens(sample)
        draw = chance.key(self.seed, _DRAW, epoch, sample)
        inputs: list[Tokens]
        if self.objective == CAUSAL:
            *inputs, target = objective.causal(tokens)
        elif self.objective == MASKED:
            *inputs, target = objective.masked(tokens, self.specials, draw)
        else:
            *inputs, target = objective.spans(tokens, self.specials, draw, self.sequence, self.sequence)
        tensors = {INPUT: inputs, TARGET: [target]}
        if part >= len(tensors.get(what, [])):
            raise ValueError(f"a sample has {len(inputs)} inputs and one target, not {what} {part}")
        (start, stop) = box[0] if box else (0, self.sequence)
        return torch.from_numpy(np.ascontiguousarray(tensors[what][part][start:stop]))
