"""What a dataset is to everyone who reads one: samples of one size, read box by box. Knows no files and no ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halocline.data import chance
from halocline.tiling.boxes import Box

INPUT, TARGET = "input", "target"

TRAIN, EVALUATION = "train", "evaluation"
SPLITS = (TRAIN, EVALUATION)
"""What samples are for."""

(_SPLIT,) = chance.purposes("split", 1)

IGNORED = -100
"""The target of a pixel or token that does not count (what `torch.nn.functional.cross_entropy` leaves out)."""


class Spec(NamedTuple):
    """One tensor of a sample."""

    shape: tuple[int, ...]
    """(C, H, W) of an image, (H, W) of a mask, (S,) of tokens, () of a class."""
    dtype: torch.dtype = torch.float32

    @property
    def pixels(self) -> tuple[int, ...]:
        """The dims that a box cuts: those of an image after its channels, all of anything else."""
        return self.shape[1:] if len(self.shape) > 2 else self.shape


class Dataset(Protocol):
    """Samples with targets. Pickles, so that worker processes can read it too. Your own needs no more than this."""

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """The tensors that go into a model, per sample."""

    @property
    def targets(self) -> tuple[Spec, ...]:
        """The tensors that go into its loss, per sample."""

    @property
    def classes(self) -> int:
        """Targets lie in [0, classes), or are `IGNORED`."""

    def __len__(self) -> int: ...

    def read(self, sample: int, what: str, box: Box | None = None, *, part: int = 0, epoch: int = 0) -> Tensor:
        """Tensor `part` of the inputs or targets (`what` is "input" or "target") of a sample: the pixels in `box`
        (one interval per dim of `Spec.pixels`; None: all) and no others. Whatever is random about it depends on the
        dataset's seed, the sample and the epoch alone."""


class Subset:
    """Some samples of a dataset, in a given order."""

    def __init__(self, dataset: Dataset, samples: Sequence[int]) -> None:
        self.dataset = dataset
        self.samples = samples
        self.inputs, self.targets, self.classes = dataset.inputs, dataset.targets, dataset.classes
        self.skipped = skipped(dataset)

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, sample: int, what: str, box: Box | None = None, *, part: int = 0, epoch: int = 0) -> Tensor:
        return self.dataset.read(int(self.samples[sample]), what, box, part=part, epoch=epoch)

    @property
    def bytes_read(self) -> int:
        return bytes_read(self.dataset)


def bytes_read(dataset: Dataset) -> int:
    """Bytes that this process has read from files for a dataset; 0 for one that does not count."""
    return getattr(dataset, "bytes_read", 0)


def skipped(dataset: Dataset) -> tuple[str, ...]:
    """The files that a dataset leaves out because they are bad."""
    return getattr(dataset, "skipped", ())


def as_dtype(specs: Sequence[Spec], dtype: torch.dtype) -> tuple[Spec, ...]:
    """The tensors of samples whose values, if they are not whole numbers, are handed out as `dtype`."""
    return tuple(spec._replace(dtype=dtype) if spec.dtype.is_floating_point else spec for spec in specs)


def full_box(spec: Spec) -> Box:
    """All the pixels of a sample."""
    return tuple((0, size) for size in spec.pixels)


def chosen(samples: int, split: str, fraction: float, seed: int) -> NDArray[np.int64]:
    """The samples of a split, rising. The two splits share none and make up the whole."""
    if split not in SPLITS:
        raise ValueError(f"{split!r} is not a split: use {' or '.join(SPLITS)}")
    if not 0 <= fraction < 1:
        raise ValueError(f"an evaluation fraction of {fraction} is not in [0, 1): use e.g. 0.1")
    kept = int(samples * fraction)
    if fraction and not kept:
        kept = min(1, samples - 1)  # a small set still has something to evaluate on, and to train on
    if split == EVALUATION and not kept:
        raise ValueError(
            f"nothing is left for evaluation of {samples} samples with a fraction of {fraction}: "
            f"bring more data, raise the fraction, or evaluate on nothing (--evaluation-fraction 0)"
        )
    order = chance.permutation(samples, seed, _SPLIT)
    return np.sort(order[:kept] if split == EVALUATION else order[kept:])


def further(samples: int, fraction: float) -> int:
    """How many samples are generated for evaluation, beside `samples` to train on."""
    if not 0 <= fraction < 1:
        raise ValueError(f"an evaluation fraction of {fraction} is not in [0, 1): use e.g. 0.1")
    if samples < 1:
        raise ValueError(f"samples = {samples} is below 1: use 1 or more")
    return max(1, int(samples * fraction))
