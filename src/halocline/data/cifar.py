"""CIFAR-10 in its binary format: records of a label and 32 x 32 pixels, mapped into memory. Needs no pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halocline.data.dataset import EVALUATION
from halocline.data.picture import BadFile, fractions
from halocline.tiling.boxes import Box, shape

SIDE, CHANNELS, CLASSES = 32, 3, 10
RECORD = 1 + CHANNELS * SIDE * SIDE
FOLDER = "cifar-10-batches-bin"
"""What the archive unpacks to."""
TEST = "test_batch.bin"


class Cifar:
    """The records of some files, one after the other."""

    channels = CHANNELS
    classes = CLASSES
    skipped: tuple[str, ...] = ()

    def __init__(self, paths: list[Path]) -> None:
        self.bytes_read = 0
        self._paths = [str(path) for path in paths]
        self._labels: list[NDArray[np.uint8]] = []
        for path in self._paths:
            labels = np.array(_records(path)[:, 0])
            if labels.max() >= CLASSES:
                record = int(np.argmax(labels >= CLASSES))
                raise BadFile(path, f"record {record} has class {labels[record]}, and CIFAR-10 has {CLASSES} classes")
            self._labels.append(labels)
        self._starts = np.cumsum([0, *(len(labels) for labels in self._labels)])
        self._maps: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def name(self, sample: int) -> str:
        file, record = self._find(sample)
        return f"{self._paths[file]} record {record}"

    def size(self, sample: int) -> tuple[int, int]:
        return SIDE, SIDE

    def label(self, sample: int) -> int:
        file, record = self._find(sample)
        return int(self._labels[file][record])

    def mask(self, sample: int, box: Box) -> NDArray[np.int64]:
        raise ValueError("CIFAR-10 has a class per image, not per pixel: train a classifier on it")

    def pixels(self, sample: int, box: Box) -> NDArray[np.float32]:
        file, record = self._find(sample)
        if file not in self._maps:
            self._maps[file] = _records(self._paths[file])
        image = self._maps[file][record, 1:].reshape(CHANNELS, SIDE, SIDE)
        self.bytes_read += CHANNELS * int(np.prod(shape(box)))
        return fractions(image[:, slice(*box[0]), slice(*box[1])], 255)

    def _find(self, sample: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._starts, sample, side="right")) - 1
        return file, sample - int(self._starts[file])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}


def _records(path: str) -> NDArray[np.uint8]:
    size = Path(path).stat().st_size
    if size == 0 or size % RECORD:
        raise BadFile(path, f"has {size} bytes, which is not a whole number of records of {RECORD}: it is cut off")
    return np.memmap(path, np.uint8, "r").reshape(-1, RECORD)


def find_files(root: Path, split: str) -> tuple[list[Path], bool]:
    """The files of a split, and whether the data is split already, that is, whether there is a test file."""
    folder = root / FOLDER if (root / FOLDER).is_dir() else root
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {root}: give the folder of CIFAR-10's binary files, as --data cifar10:DIR"
        )
    has_test = (folder / TEST).is_file()
    if split == EVALUATION and has_test:
        return [folder / TEST], True
    numbers = sorted(
        int(path.stem.removeprefix("data_batch_"))
        for path in folder.glob("data_batch_*.bin")
        if path.stem.removeprefix("data_batch_").isdigit()
    )
    for expected in range(1, max(len(numbers), 1) + 1):
        if expected not in numbers:
            path = folder / f"data_batch_{expected}.bin"
            hint = " (the archives with pickles are not read: take the binary version)" if not numbers else ""
            raise ValueError(f"{path} is missing: unpack CIFAR-10's binary version there{hint}")
    return [folder / f"data_batch_{number}.bin" for number in numbers], has_test
