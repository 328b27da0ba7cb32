"""The batches of a run as the engine takes them: each rank reads only the boxes it needs, in the order all ranks share.

Between the data room, which knows no ranks, and the engine, which knows no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from halocline.data.dataset import Dataset, Spec
from halocline.data.loader import Loader, Piece, Step
from halocline.data.sampler import Sampler
from halocline.runtime.batch import Patchwork
from halocline.runtime.engine import Engine


@dataclass(frozen=True)
class Work:
    """One batch for `Engine.step` or `Engine.evaluate`."""

    inputs: list[Patchwork] | None
    """None on ranks without the first stage."""
    targets: Any
    """None on ranks without the last."""
    samples: int
    epoch: int


class Batches:
    """Deals out batches from where its sampler stands; iterating gives what is left of an epoch."""

    def __init__(
        self,
        engine: Engine,
        dataset: Dataset,
        samples: int,
        *,
        seed: int = 0,
        train: bool = True,
        workers: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.dataset = dataset
        self.dtype = dtype
        stages = {stage for _, stage in engine.runners}
        self._first, self._last = 0 in stages, len(engine.plan.stages) - 1 in stages
        # For evaluation every sample counts, in order; training wants full batches.
        self.sampler = Sampler(len(dataset), samples, seed=seed, shuffle=train, drop_last=train)
        inputs = [(s.shape, self._kind(s)) for s in dataset.inputs]
        targets = [(s.shape, self._kind(s)) for s in dataset.targets]
        self.loader = Loader(
            dataset,
            self.sampler,
            lambda count: engine.reads(count, inputs, targets),
            workers=workers,
            across_epochs=train,
            pin=engine.world.device.type == "cuda",
        )

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Work]:
        return (self._work(step) for step in self.loader)

    def next(self) -> Work:
        return self._work(self.loader.next())

    def close(self) -> None:
        self.loader.close()

    def _kind(self, spec: Spec) -> torch.dtype:
        return self.dtype if spec.dtype.is_floating_point else spec.dtype

    def _work(self, step: Step) -> Work:
        inputs = self._patchworks(self.dataset.inputs, step.inputs, step.samples)
        targets = self._patchworks(self.dataset.targets, step.targets, step.samples)
        return Work(
            inputs if self._first else None,
            (targets[0] if len(targets) == 1 else tuple(targets)) if self._last else None,
            step.samples,
            step.batch.epoch,
        )

    def _patchworks(self, specs: Sequence[Spec], pieces: Sequence[Sequence[Piece]], samples: int) -> list[Patchwork]:
        return [
            Patchwork((samples, *spec.shape), self._kind(spec), [(box, t.to(self._kind(spec))) for box, t in parts])
            for spec, parts in zip(specs, pieces)
        ]
