"""CIFAR-10 and CIFAR-100 as they are published: in binary files, or in the pickles that torchvision leaves. Pixels stay
on disk, mapped into memory. Images are resized to the size that is asked for.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halocline.data.dataset import EVALUATION
from halocline.data.pickled import AGAIN, read_pickle
from halocline.data.picture import BadFile, fractions
from halocline.data.resize import blend, resized
from halocline.tiling.boxes import Box, shape

SIDE, CHANNELS = 32, 3
PIXELS = CHANNELS * SIDE * SIDE


class Edition(NamedTuple):
    """One of the two."""

    name: str
    classes: int
    train: str
    """The files to train on; {} is a number from 1 on."""
    test: str
    head: int
    """Bytes before a binary record's pixels; the last of them is its class."""
    labels: str
    """What a pickle calls its classes."""
    folders: dict[str, str]
    """What each archive unpacks to."""


EDITIONS = {
    "cifar10": Edition(
        "CIFAR-10", 10, "data_batch_{}", "test_batch", 1, "labels",
        {"cifar-10-binary.tar.gz": "cifar-10-batches-bin", "cifar-10-python.tar.gz": "cifar-10-batches-py"},
    ),
    "cifar100": Edition(
        "CIFAR-100", 100, "train", "test", 2, "fine_labels",
        {"cifar-100-binary.tar.gz": "cifar-100-binary", "cifar-100-python.tar.gz": "cifar-100-python"},
    ),
}  # fmt: skip
BINARY = ".bin"


class Cifar:
    """The images of some files, one after the other, each `image` pixels large."""

    channels = CHANNELS
    skipped: tuple[str, ...] = ()

    def __init__(self, paths: list[Path], edition: Edition, image: tuple[int, int] = (SIDE, SIDE)) -> None:
        self.bytes_read = 0
        self.classes = edition.classes
        self.image = image
        self._edition = edition
        self._paths = [str(path) for path in paths]
        self._images: dict[int, NDArray[np.uint8]] = {}
        self._labels: list[NDArray[np.int64]] = []
        for file, path in enumerate(self._paths):
            labels, self._images[file] = _read(path, edition)
            wrong = (labels < 0) | (labels >= self.classes)
            if wrong.any():
                record = int(np.argmax(wrong))
                why = f"record {record} has class {labels[record]}, and {edition.name} has {self.classes} classes"
                raise BadFile(path, f"{why}, from 0 on: {AGAIN}")
            self._labels.append(labels)
        self._starts = np.cumsum([0, *(len(labels) for labels in self._labels)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def name(self, sample: int) -> str:
        file, record = self._find(sample)
        return f"{self._paths[file]} record {record}"

    def size(self, sample: int) -> tuple[int, int]:
        return self.image

    def label(self, sample: int) -> int:
        file, record = self._find(sample)
        return int(self._labels[file][record])

    def mask(self, sample: int, box: Box) -> NDArray[np.int64]:
        raise ValueError(no_mask(self._edition))

    def pixels(self, sample: int, box: Box) -> NDArray[np.float32]:
        file, record = self._find(sample)
        if file not in self._images:
            self._images[file] = _read(self._paths[file], self._edition)[1]
        lines = [blend(SIDE, size, interval) for size, interval in zip(self.image, box)]
        seen = tuple(line.seen for line in lines)
        stored = self._images[file][record].reshape(CHANNELS, SIDE, SIDE)[:, slice(*seen[0]), slice(*seen[1])]
        self.bytes_read += CHANNELS * int(np.prod(shape(seen)))
        return fractions(resized(stored, *lines), 255)

    def _find(self, sample: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._starts, sample, side="right")) - 1
        return file, sample - int(self._starts[file])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_images": {}}


def no_mask(edition: Edition) -> str:
    """Why there is nothing to segment."""
    return f"{edition.name} has a class per image, not per pixel: train a classifier on it"


# -- files -----------------------------------------------------------------------------------------------------------


def _read(path: str, edition: Edition) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The classes and the pixels, an image a row, of a file."""
    if path.endswith(BINARY):
        size, record = Path(path).stat().st_size, edition.head + PIXELS
        if size == 0 or size % record:
            raise BadFile(path, f"has {size} bytes, which is not a whole number of records of {record}: {AGAIN}")
        records = np.memmap(path, np.uint8, "r").reshape(-1, record)
        return records[:, edition.head - 1].astype(np.int64), records[:, edition.head :]
    found = read_pickle(path)
    labels, images = (_entry(path, found, key) for key in (edition.labels, "data"))
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != PIXELS or not len(images):
        has = " x ".join(map(str, images.shape)) if isinstance(images, np.ndarray) else "no array"
        raise BadFile(path, f"has {has} as data, and {edition.name} has {PIXELS} bytes for each image: {AGAIN}")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise BadFile(path, f"has {edition.labels} that are not a list of whole numbers: {AGAIN}")
    if len(labels) != len(images):
        raise BadFile(path, f"has {len(labels)} {edition.labels} for {len(images)} images: {AGAIN}")
    return np.array(labels, np.int64), images


def _entry(path: str, found: Any, key: str) -> Any:
    """What a pickle has under a key: bytes, as Python 2 wrote it, or a word."""
    for spelled in (key.encode(), key):
        if isinstance(found, dict) and spelled in found:
            return found[spelled]
    raise BadFile(path, f"has no {key}: {AGAIN}")


def find_files(root: Path, edition: Edition, split: str) -> tuple[list[Path], bool]:
    """The files of a split, and whether the data is split already, that is, whether there is a test file. They lie in
    the folder that an archive unpacks to, below `root` or `root` itself; binary files come before pickles."""
    kinds = [(root / folder, BINARY * ("python" not in archive)) for archive, folder in edition.folders.items()]
    for folder, suffix in (*kinds, (root, BINARY), (root, "")):
        test = folder / (edition.test + suffix)
        train = _numbered(folder, edition.train + suffix)
        if split == EVALUATION and test.is_file():
            return [test], True
        if train or test.is_file():
            break
    else:
        raise ValueError(_nothing(root, edition))
    for path in train or [folder / (edition.train + suffix).format(1)]:
        if not path.is_file():
            raise ValueError(f"{path} is missing: {AGAIN}")
    return train, test.is_file()


def _numbered(folder: Path, name: str) -> list[Path]:
    """The file of a name; of one with a number, as many from 1 on as there are, whether or not a number is missing."""
    start, number, end = name.partition("{}")
    if not number:
        return [folder / name] if (folder / name).is_file() else []
    found = [path.name.removeprefix(start).removesuffix(end) for path in folder.glob(name.format("*"))]
    return [folder / name.format(place + 1) for place in range(sum(text.isdecimal() for text in found))]


def _nothing(root: Path, edition: Edition) -> str:
    """What to do where no file of an edition is."""
    for archive in (root, *(folder / name for folder in (root, root.parent) for name in edition.folders)):
        if archive.is_file() and archive.name.endswith(".tar.gz"):
            to = shlex.quote(str(archive.parent))
            command = f"tar -xzf {shlex.quote(str(archive))} -C {to}"
            return f"{archive} is not unpacked: run {command}, and give {archive.parent} as the folder"
    for kind, other in EDITIONS.items():
        if other is not edition and _holds(root, other):
            return f"{root} holds {other.name} and no {edition.name}: use --data {kind}:{root}"
    there = "holds no" if root.is_dir() else "is no folder with"
    return f"{root} {there} {edition.name}: unpack {' or '.join(edition.folders)} and give the folder that it is in"


def other_way(root: Path) -> str:
    """How to open a folder that could not be opened as one of images, if it is one of ours."""
    for kind, edition in EDITIONS.items():
        if any((root / folder).is_dir() for folder in edition.folders.values()):
            return f"; or read the {edition.name} in it by --data {kind}:{root}"
    return ""


def _holds(root: Path, edition: Edition) -> bool:
    folders = (root, *(root / folder for folder in edition.folders.values()))
    return any((folder / (edition.test + suffix)).is_file() for folder in folders for suffix in (BINARY, ""))
