"""Plain text files as windows of tokens: bytes as they are, or through a tokenizer file; `.npy` files hold tokens
already. Knows nothing of what the tokens are used for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocline.data.folder import SPLIT_FOLDERS
from halocline.data.objective import Tokens
from halocline.data.picture import BadFile, MissingExtra
from halocline.data.split import EVALUATION, TRAIN

BYTES = 256
SUFFIXES = (".txt", ".text", ".md", ".npy")
_LINES = 2048
"""Lines that go to a tokenizer at once."""


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
    lines: list[str] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # editors may mark text as UTF-8
            for line in file:
                lines.append(line)
                if len(lines) == _LINES:
                    yield lines
                    lines = []
    except UnicodeDecodeError as error:
        raise BadFile(path, f"is not UTF-8 ({error.reason} at byte {error.start}): convert it") from None
    if lines:
        yield lines


def text_files(root: Path, split: str) -> tuple[list[str], bool]:
    """The files of a split, and whether the data is split already: by folders or files called train and val."""
    if root.is_file():
        return [str(root)], False
    if not root.is_dir():
        raise ValueError(f"there is no text at {root}: give a file or a folder as --datapath")

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
