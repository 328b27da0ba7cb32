"""A batch as one rank sees it: how its samples fall on replicas and microbatches, and which parts of it the rank takes.

Knows samples and boxes; nothing of schedules, layers or messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from halocline.plan.plan import Plan
from halocline.runtime.boundary.crossing import order_of, sample_cuts
from halocline.runtime.boundary.patchwork import Patchwork

Field = tuple[tuple[int, ...], torch.dtype]
"""One sample of a tensor: its shape without the batch dim, and its dtype."""


class Batch:
    """The samples of one step. `inputs` and `targets` are tensors or patchworks, several of them, or None."""

    def __init__(self, plan: Plan, replica: int, inputs: Any, targets: Any, samples: int | None = None) -> None:
        self.plan, self.replica = plan, replica
        self.inputs, self._targets = _tensors("inputs", inputs), targets
        counts = {int(tensor.shape[0]) for tensor in (*self.inputs, *_tensors("targets", targets))}
        if len(counts) > 1:
            raise ValueError(
                f"inputs and targets have {min(counts)} and {max(counts)} samples: give each of them as many"
            )
        if samples is not None and counts - {samples}:
            raise ValueError(f"samples = {samples} but the batch has {counts.pop()}: leave out samples")
        self.samples = samples if samples is not None else self._count(counts)
        """Of the whole step, all replicas."""

    def _count(self, counts: set[int]) -> int:
        for count in counts:
            return count
        if self.plan.batch is not None:
            return self.plan.batch * self.plan.replicas
        raise ValueError("neither inputs nor targets were given on this rank: pass samples=, the size of the batch")

    def cuts(self) -> list[tuple[int, int]]:
        """The samples of each microbatch of this replica, none of them empty."""
        shares = sample_cuts(self.samples, self.plan.replicas) if self.samples >= self.plan.replicas else []
        if not shares or shares[self.replica][1] - shares[self.replica][0] < self.plan.microbatches:
            need = self.plan.replicas * self.plan.microbatches
            raise ValueError(
                f"a batch of {self.samples} samples cannot fill {need} microbatches ({self.plan.replicas} replicas x "
                f"{self.plan.microbatches}): use a batch of at least {need}, or fewer microbatches"
            )
        begin, end = shares[self.replica]
        return [(begin + a, begin + b) for a, b in sample_cuts(end - begin, self.plan.microbatches)]

    def loose_cuts(self) -> list[tuple[int, int]]:
        """The same for a forward alone, where a microbatch may be empty."""
        begin, end = _spread(0, self.samples, self.plan.replicas)[self.replica]
        return _spread(begin, end, self.plan.microbatches)

    def inputs_of(self, cut: tuple[int, int]) -> list[Any]:
        return [tensor[cut[0] : cut[1]] for tensor in self.inputs]

    def targets_of(self, cut: tuple[int, int], device: torch.device) -> Any:
        if self._targets is None:
            return None
        if isinstance(self._targets, (Tensor, Patchwork)):
            return self._targets[cut[0] : cut[1]].to(device)
        return tuple(target[cut[0] : cut[1]].to(device) for target in self._targets)


def _spread(begin: int, end: int, parts: int) -> list[tuple[int, int]]:
    return list(pairwise(begin + (end - begin) * i // parts for i in range(parts + 1)))


def _tensors(what: str, value: Any) -> list[Any]:
    if value is None:
        return []
    tensors = [value] if isinstance(value, (Tensor, Patchwork)) else value
    if not isinstance(tensors, (tuple, list)) or not all(
        isinstance(t, (Tensor, Patchwork)) and t.ndim for t in tensors
    ):
        raise ValueError(
            f"the {what} are {_describe(value)}: give a tensor, or a tuple of tensors, whose first dim counts samples"
        )
    return list(tensors)


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)) and value:
        return f"a {type(value).__name__} with a {type(next(iter(value))).__name__} in it"
    return "a tensor without dims" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def fields(tensors: Sequence[Any]) -> list[Field]:
    """What one sample of each tensor is."""
    return [(tuple(t.shape[1:]), t.dtype) for t in tensors]


def orders(tensors: Sequence[Any]) -> list[tuple[int, ...]]:
    """How they lie in memory, as a Crossing has it; patchworks lie in the usual way."""
    return [order_of(t) if isinstance(t, Tensor) else () for t in tensors]
