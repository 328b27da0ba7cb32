"""Token sequences as a language model takes them, with an objective's targets: windows of plain text files, as bytes or
through a tokenizer file (`.npy` files hold tokens already), or generated ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halocline.data import chance
from halocline.data.dataset import EVALUATION, INPUT, TARGET, TRAIN, Spec
from halocline.data.folder import SPLIT_FOLDERS
from halocline.data.objective import (
    CAUSAL,
    MASKED,
    SPANS,
    Specials,
    Tokens,
    causal,
    masked,
    placed_above,
    span_length,
    spans,
    specials_of,
)
from halocline.data.picture import BadFile, MissingExtra
from halocline.tiling.boxes import Box

BYTES = 256
SUFFIXES = (".txt", ".text", ".md", ".npy")
_LINES = 2048
"""Lines that go to a tokenizer at once."""
DISTINCT = 64
"""Ordinary tokens of generated sequences: few enough for their rule to be learnt soon."""

_TOKENS, _JUMPS, _DRAW = chance.purposes("tokens", 3)


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
            *inputs, target = causal(tokens)
        elif self.objective == MASKED:
            *inputs, target = masked(tokens, self.specials, draw)
        else:
            *inputs, target = spans(tokens, self.specials, draw, self.sequence, self.sequence)
        tensors = {INPUT: inputs, TARGET: [target]}
        if part >= len(tensors.get(what, [])):
            raise ValueError(f"a sample has {len(inputs)} inputs and one target, not {what} {part}")
        (start, stop) = box[0] if box else (0, self.sequence)
        return torch.from_numpy(np.ascontiguousarray(tensors[what][part][start:stop]))


# -- files -----------------------------------------------------------------------------------------------------------


class TextWindows:
    """The texts of some files, one after the other, cut into windows of `length` tokens, one every `step`."""

    def __init__(
        self, paths: list[str], length: int, step: int, tokenizer: Any = None, vocabulary: int = BYTES
    ) -> None:
        self.bytes_read = 0
        self.length = length
        self.step = step
        self.vocabulary = vocabulary
        self._paths = paths
        self._texts = [_text(path, tokenizer) for path in paths]
        self._starts = np.cumsum([0, *(len(text) for text in self._texts)])
        total = int(self._starts[-1])
        self._count = max(0, (total - length) // step + 1)
        if not self._count:
            raise ValueError(
                f"{paths[0]}{' and others' if len(paths) > 1 else ''} have {total} tokens, fewer than the {length} of "
                f"one sample: bring more text, or use a shorter sequence"
            )

    def __len__(self) -> int:
        return self._count

    def tokens(self, sample: int) -> Tokens:
        start = sample * self.step
        stop = start + self.length
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        pieces = []
        for number in range(first, len(self._texts)):
            begin = int(self._starts[number])
            if begin >= stop:
                break
            piece = self._texts[number][max(0, start - begin) : stop - begin]
            pieces.append(np.asarray(piece, np.int64))
            self.bytes_read += piece.nbytes
        tokens = np.concatenate(pieces)
        worst = int(tokens.max())
        if worst >= self.vocabulary or int(tokens.min()) < 0:
            raise BadFile(
                self._paths[first], f"has token {worst}, and the model's vocabulary has {self.vocabulary}: enlarge it"
            )
        return tokens

    def __getstate__(self) -> dict[str, Any]:
        texts = [None if isinstance(text, np.memmap) else text for text in self._texts]  # a map would be copied
        return {**self.__dict__, "_texts": texts, "bytes_read": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._texts = [_text(path) if text is None else text for path, text in zip(self._paths, self._texts)]


def _text(path: str, tokenizer: Any = None) -> NDArray:
    """A file's tokens, left in the file where that is possible."""
    if Path(path).stat().st_size == 0:
        return np.empty(0, np.uint8)
    if path.endswith(".npy"):
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise BadFile(path, f"cannot be read ({error})") from error
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise BadFile(path, f"holds {tokens.dtype} of shape {tokens.shape}: bring a list of integers")
        return tokens
    if tokenizer is None:
        return np.memmap(path, np.uint8, "r")
    encoded = [
        np.array(line.ids, np.uint32)
        for lines in _blocks(path)
        for line in tokenizer.encode_batch(lines, add_special_tokens=False)
    ]
    return np.concatenate([np.empty(0, np.uint32), *encoded])


def _blocks(path: str) -> Iterator[list[str]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # editors may mark text as UTF-8
            while lines := list(islice(file, _LINES)):
                yield lines
    except UnicodeDecodeError as error:
        raise BadFile(path, f"is not UTF-8 ({error.reason} at byte {error.start}): convert it") from None


def text_files(root: Path, split: str) -> tuple[list[str], bool]:
    """The files of a split, and whether the data is split already: by folders or files called train and val."""
    if root.is_file():
        return [str(root)], False
    if not root.is_dir():
        raise ValueError(f"there is no text at {root}: give a file or a folder as --data")

    def below(names: tuple[str, ...]) -> list[str]:
        for name in names:
            if (root / name).is_dir():
                return _texts(root / name)
            for suffix in SUFFIXES:
                if (root / f"{name}{suffix}").is_file():
                    return [str(root / f"{name}{suffix}")]
        return []

    train, evaluation = below(SPLIT_FOLDERS[TRAIN]), below(SPLIT_FOLDERS[EVALUATION])
    if train and evaluation:
        return (evaluation if split == EVALUATION else train), True
    files = train or _texts(root)
    if not files:
        raise ValueError(f"{root} holds no text: bring {', '.join(SUFFIXES)}")
    return files, False


def _texts(folder: Path) -> list[str]:
    return sorted(
        str(path)
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file() and not path.name.startswith(".")
    )


def load_tokenizer(path: str | Path) -> Any:
    """A tokenizer from a file of Hugging Face's `tokenizers`."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra(f"{path} needs tokenizers: install halocline[models]") from None
    if not Path(path).is_file():
        raise ValueError(f"there is no tokenizer {path}: give a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a plain Exception
        raise BadFile(str(path), f"is not a tokenizer ({' '.join(str(error).split())})") from None
    # A file may say that every text is to be cut and filled up to one length: a line of ours would lose its end.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
