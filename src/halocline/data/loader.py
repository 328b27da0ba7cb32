"""The batches of a run as one process needs them: of each step only the pieces asked for, read ahead by worker
processes. Knows boxes of a batch, not who asks for them or why.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from halocline.data.dataset import INPUT, TARGET, Dataset, Spec, as_dtype, bytes_read
from halocline.data.sampler import DealtBatch, Sampler
from halocline.tiling.boxes import Box, is_empty, shape
from halocline.tiling.patchwork import Patchwork, ReadBoxes

PREFETCH = 2
"""Steps that each worker reads ahead."""


@dataclass(frozen=True)
class Step:
    """One batch, as far as it was asked for: a patchwork without pieces where this process needs none."""

    batch: DealtBatch
    inputs: list[Patchwork]
    targets: list[Patchwork]
    bytes_read: int = 0
    """From files, for this step."""

    @property
    def target(self) -> Any:
        """The targets as a loss takes them: one, or a tuple of them."""
        return self.targets[0] if len(self.targets) == 1 else tuple(self.targets)

    def pin_memory(self) -> Step:
        """Called by the thread that pins what goes to a GPU."""
        inputs, targets = ([tensor.pin_memory() for tensor in tensors] for tensors in (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets)


_Job: TypeAlias = tuple[DealtBatch, ReadBoxes]


class Loader:
    """Iterating gives the steps that are left of the sampler's epoch, and moves the sampler as it hands them out.

    `reads` says which boxes of a batch of so many samples this process needs. A process that needs nothing gets steps
    without pieces, and its sampler moves all the same. Values that are not whole numbers are handed out as `dtype`."""

    def __init__(
        self,
        dataset: Dataset,
        sampler: Sampler,
        reads: Callable[[int], ReadBoxes],
        *,
        workers: int = 0,
        dtype: torch.dtype = torch.float32,
        across_epochs: bool = True,
        pin: bool = False,
    ) -> None:
        if workers < 0:
            raise ValueError(f"{workers} workers cannot read: use 0 to read in the training process, or more")
        self.sampler = sampler
        self.bytes_read = 0
        """From files, for all steps handed out."""
        self._jobs = _Jobs(sampler, reads, across_epochs)
        self._stream: Iterator[Step | Exception] | None = None
        self._expected: tuple[int, int] | None = None
        self._steps: DataLoader[Step | Exception] = DataLoader(
            _Fetcher(dataset, dtype),
            batch_size=None,
            sampler=self._jobs,
            num_workers=workers,
            prefetch_factor=PREFETCH if workers else None,
            persistent_workers=workers > 0,
            worker_init_fn=_be_a_worker,
            # Starting a fresh interpreter per worker costs seconds; workers touch no GPU, so a fork is safe.
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            pin_memory=pin,
            generator=torch.Generator(),  # its own, so that reading leaves the model's random numbers alone
        )

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Step]:
        epoch = self.sampler.epoch
        while self.sampler.epoch == epoch:
            yield self.next()

    def next(self) -> Step:
        """The next step, of whichever epoch."""
        here = (self.sampler.epoch, self.sampler.position)
        if self._stream is None or here != self._expected:  # the sampler was set elsewhere: what was read ahead is void
            self._stream = iter(self._steps)
        got = next(self._stream)
        if isinstance(got, Exception):
            self._stream = None  # whoever tries again tries the same batch
            raise got
        self.sampler.advance(got.batch)
        self.bytes_read += got.bytes_read
        self._expected = (self.sampler.epoch, self.sampler.position)
        if not self._jobs.across_epochs and self.sampler.epoch != got.batch.epoch:
            self._stream = None
        return got

    def close(self) -> None:
        """Ends the worker processes."""
        self._stream = None
        self._steps = None  # type: ignore[assignment]


class _Jobs:
    """What is to be read, in order, from where the sampler stands."""

    def __init__(self, sampler: Sampler, reads: Callable[[int], ReadBoxes], across_epochs: bool) -> None:
        self.sampler = sampler
        self.reads = reads
        self.across_epochs = across_epochs
        self.known: dict[int, ReadBoxes] = {}

    def __iter__(self) -> Iterator[_Job]:
        epoch = self.sampler.epoch
        for batch in self.sampler.upcoming():
            if batch.epoch != epoch and not self.across_epochs:
                return
            samples = len(batch.samples)
            if samples not in self.known:
                self.known[samples] = self.reads(samples)
            yield batch, self.known[samples]


class _Fetcher(torch.utils.data.Dataset["Step | Exception"]):
    """Reads jobs, in a worker or in the training process. A failure is handed over rather than raised, so that its
    message arrives as it was written."""

    def __init__(self, dataset: Dataset, dtype: torch.dtype) -> None:
        self.dataset = dataset
        self.inputs, self.targets = as_dtype(dataset.inputs, dtype), as_dtype(dataset.targets, dtype)

    def __getitem__(self, job: _Job) -> Step | Exception:
        batch, wanted = job
        before = bytes_read(self.dataset)
        try:
            inputs = self._tensors(INPUT, self.inputs, wanted.inputs, batch)
            targets = self._tensors(TARGET, self.targets, wanted.targets, batch)
        except Exception as error:
            return error
        return Step(batch, inputs, targets, bytes_read(self.dataset) - before)

    def _tensors(
        self, what: str, specs: Sequence[Spec], boxes: Sequence[Sequence[Box]], batch: DealtBatch
    ) -> list[Patchwork]:
        if boxes and len(boxes) != len(specs):
            raise ValueError(
                f"boxes of {len(boxes)} {what} tensors are asked for, the data has {len(specs)} per sample: "
                f"train a model that suits the data"
            )
        made = []
        for part, (spec, wanted) in enumerate(zip(specs, boxes or ((),) * len(specs))):
            pieces = [(box, self._piece(what, part, spec, box, batch)) for box in dict.fromkeys(wanted)]
            made.append(Patchwork((len(batch.samples), *spec.shape), spec.dtype, pieces))
        return made

    def _piece(self, what: str, part: int, spec: Spec, box: Box, batch: DealtBatch) -> Tensor:
        if len(box) != 1 + len(spec.shape):
            raise ValueError(
                f"box {box} does not fit {what}s of shape {spec.shape} per sample: it needs one interval for the "
                f"samples and one per dim"
            )
        if is_empty(box):
            return torch.empty(shape(box), dtype=spec.dtype)
        inner = len(spec.pixels)
        pixels = box[len(box) - inner :]
        channels = tuple(slice(*interval) for interval in box[1 : len(box) - inner])
        read = [
            self.dataset.read(sample, what, pixels, part=part, epoch=batch.epoch)[channels]
            for sample in batch.samples[slice(*box[0])]
        ]
        return (torch.stack(read) if len(read) > 1 else read[0][None]).to(spec.dtype)


def lost_worker(error: Exception) -> str | None:
    """What to say of an error that torch raises, wherever the process is, when one of its workers has gone."""
    if not (isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")):
        return None
    why = str(error).strip().rstrip(".").removeprefix("DataLoader ")
    return f"a process that reads data is gone ({why}): it may have run out of (shared) memory; use fewer --workers"


def _be_a_worker(number: int) -> None:
    # Ctrl-C reaches every process of the terminal. The training process decides what to do; its workers go on until it
    # closes them, or is gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
