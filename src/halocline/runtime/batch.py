"""A batch as one rank sees it: tensors or the boxes of them that are here, the microbatches its samples fall into, and
the boxes of it that the rank must read. Knows samples and boxes; nothing of files, schedules or messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from halocline.plan.plan import Plan
from halocline.runtime.boundary.crossing import Crossing, order_of, target_crossing
from halocline.tiling.boxes import Box, is_empty
from halocline.tiling.patchwork import Patchwork, ReadBoxes, shifted

if TYPE_CHECKING:
    from halocline.runtime.boundary.shapes import Shapes

Field = tuple[tuple[int, ...], torch.dtype]
"""One sample of a tensor: its shape without the batch dim, and its dtype."""
Measure = Callable[[Any, Any], Tensor]
"""(output, target) -> one number, a sum over samples (or pixels): sums of microbatches add up."""


class Microbatches:
    """The samples of one step or evaluation, cut into this replica's microbatches. `inputs` and `targets` are tensors
    or patchworks, several of them, or None. In `forwards` alone a microbatch may be empty."""

    def __init__(
        self,
        plan: Plan,
        replica: int,
        inputs: Any,
        targets: Any,
        samples: int | None = None,
        number: int = 0,
        device: torch.device | str = "cpu",
        forwards: bool = False,
    ) -> None:
        self.number = number
        """The step's."""
        self.first = replica * plan.microbatches
        """This replica's first microbatch, counted over all replicas."""
        self._inputs, self._targets, self._device = _tensors("inputs", inputs), targets, device
        counts = {int(tensor.shape[0]) for tensor in (*self._inputs, *_tensors("targets", targets))}
        if len(counts) > 1:
            raise ValueError(
                f"inputs and targets have {min(counts)} and {max(counts)} samples: give each of them as many"
            )
        if samples is not None and counts - {samples}:
            raise ValueError(f"samples = {samples} but the batch has {counts.pop()}: leave out samples")
        if samples is None:
            samples = counts.pop() if counts else _planned(plan)
        self.total = samples
        """Samples of the whole step, all replicas."""
        self.cuts = sample_cuts(plan, samples, empty=forwards)[replica]
        """First and last + 1 sample of each microbatch, counted in the whole batch."""
        self.samples = [end - begin for begin, end in self.cuts]
        """Of each microbatch."""
        self.sizes = sorted({n for n in self.samples if n}, reverse=True)
        self.fields: list[Field] = [(tuple(t.shape[1:]), t.dtype) for t in self._inputs]
        """What one sample of each input is."""
        self.orders = [order_of(t) if isinstance(t, Tensor) else () for t in self._inputs]
        """How the inputs lie in memory, as a Crossing has it; patchworks lie in the usual way."""
        self.losses: dict[int, Tensor] = {}
        """Microbatch -> its loss, once it is known."""
        self.measures: Mapping[str, Measure] = {}
        """What is asked of the last stage's outputs beside the loss."""
        self.sums: dict[int, Tensor] = {}
        """Microbatch -> the sum of each measure, once it is known."""
        self.complete: Callable[[], None] = lambda: None
        """Called once this rank has made all its losses: on ranks that make none, at the start."""

    def inputs(self, microbatch: int) -> list[Any]:
        begin, end = self.cuts[microbatch]
        return [tensor[begin:end] for tensor in self._inputs]

    def targets(self, microbatch: int) -> Any:
        begin, end = self.cuts[microbatch]
        if self._targets is None:
            return None
        if isinstance(self._targets, (Tensor, Patchwork)):
            return self._targets[begin:end].to(self._device)
        return tuple(target[begin:end].to(self._device) for target in self._targets)


def sample_cuts(plan: Plan, samples: int, empty: bool = False) -> list[list[tuple[int, int]]]:
    """The samples of each microbatch, by replica: sizes differ by at most one. Refuses `empty` ones unless told."""
    if samples // plan.replicas < plan.microbatches and not empty:
        need = plan.replicas * plan.microbatches
        raise ValueError(
            f"a batch of {samples} samples cannot fill {need} microbatches ({plan.replicas} replicas x "
            f"{plan.microbatches}): use a batch of at least {need}, or fewer microbatches"
        )
    return [_spread(begin, end, plan.microbatches) for begin, end in _spread(0, samples, plan.replicas)]


def _spread(begin: int, end: int, parts: int) -> list[tuple[int, int]]:
    return list(pairwise(begin + (end - begin) * i // parts for i in range(parts + 1)))


def _planned(plan: Plan) -> int:
    if plan.batch is None:
        raise ValueError("neither inputs nor targets were given on this rank: pass samples=, the size of the batch")
    return plan.batch * plan.replicas


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


def reads(work: Microbatches, shapes: Shapes, inputs: Sequence[Field], targets: Sequence[Field]) -> ReadBoxes:
    """What a rank must read of a batch whose tensors are as `inputs` and `targets` say: its tiles of the images if it
    holds the first stage, and what it needs of the targets if it holds the last."""
    plan, runners = shapes.layout.plan, shapes.runners
    last = len(plan.stages) - 1
    shapes.learn(inputs if any(stage == 0 for _, stage in runners) else [], work.sizes)
    wanted_inputs: list[list[Box]] = [[] for _ in inputs]
    wanted_targets: list[list[Box]] = [[] for _ in targets]
    for microbatch, (samples, (begin, _)) in enumerate(zip(work.samples, work.cuts)):
        pipe = plan.pipe_of(microbatch)
        if samples and (pipe, 0) in runners:
            for boxes, crossing in zip(wanted_inputs, shapes.received(0, samples)):
                boxes.append(shifted(runners[pipe, 0].origin(crossing), begin))
        if samples and (pipe, last) in runners:
            runner = runners[pipe, last]
            for boxes, (shape, dtype) in zip(wanted_targets, targets):
                crossing = Crossing((samples, *shape), "", False)
                if runner.exchanger is not None:
                    crossing = target_crossing(shapes.prediction(samples), crossing.size, dtype)
                boxes.append(shifted(runner.origin(crossing), begin))
    return ReadBoxes(_each_once(wanted_inputs), _each_once(wanted_targets))


def _each_once(boxes: Sequence[Sequence[Box]]) -> tuple[tuple[Box, ...], ...]:
    return tuple(tuple(dict.fromkeys(b for b in found if not is_empty(b))) for found in boxes)
