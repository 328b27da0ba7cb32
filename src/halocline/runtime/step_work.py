"""What one step is about, for one rank: the data it needs, and the sizes everybody agrees on. Knows no schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from halocline.runtime.batch import Batch


@dataclass
class StepWork:
    """What one step is about: the data this rank needs, and the sizes everybody agrees on."""

    number: int
    samples: list[int]
    """Samples of each microbatch of this replica."""
    total: int
    """Samples of the whole step, all replicas."""
    first: int
    """This replica's first microbatch, counted over all replicas."""
    inputs: Callable[[int], list[Any]] | None = None
    """microbatch -> its whole input tensors, or patchworks of what this rank needs of them."""
    targets: Callable[[int], Any] | None = None
    losses: dict[int, Tensor] = field(default_factory=dict)
    complete: Callable[[], None] = lambda: None
    """Called once this rank has made all its losses: on ranks that make none, at the start."""

    @classmethod
    def of(cls, batch: Batch, cuts: Sequence[tuple[int, int]], number: int, device: torch.device) -> StepWork:
        """A batch whose microbatches of this replica are `cuts`."""
        return cls(
            number,
            [b - a for a, b in cuts],
            batch.samples,
            batch.replica * batch.plan.microbatches,
            lambda m: batch.inputs_of(cuts[m]),
            lambda m: batch.targets_of(cuts[m], device),
        )
