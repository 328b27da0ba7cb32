"""The proof by running: a plan's steps on its processes against the same steps on one device. Holds the one reference
loop that everything is compared with, and the measure of a difference.

The difference of a tensor a from one device's b is  max|a - b| / max(max|b|, FLOOR x the largest value of its kind):
relative to the tensor's own largest value, except that a tensor which is zero but for rounding (the gradient of a bias
in front of BatchNorm) is held against the largest gradient of the model, of which its rounding errors are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from halocline.plan.plan import Plan
from halocline.runtime.batch import sample_cuts
from halocline.runtime.engine import Engine
from halocline.runtime.layers import Layer, derived_seed, one_device
from halocline.runtime.parallel.shard import whole
from halocline.runtime.parallel.tied import tie
from halocline.runtime.stage import Loss
from halocline.runtime.updating import MakeOptimizer
from halocline.tiling.randomness import seed_randomness

FLOOR = 1e-2

Batches = Iterable[tuple[Any, Any]]
"""(inputs, targets) of each step, whole batches."""


@dataclass
class Reference:
    """What one device made of some steps."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    """For each step, name -> gradient, of the parameters that have one."""
    parameters: dict[str, Tensor] = field(default_factory=dict)
    """After the last step."""
    buffers: dict[str, Tensor] = field(default_factory=dict)


def reference(
    layers: nn.Sequential | Sequence[Layer],
    plan: Plan,
    batches: Batches,
    *,
    loss: Loss,
    optimizer: MakeOptimizer | None = None,
    tied: Sequence[tuple[str, str]] = (),
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    within: Callable[[nn.Module], AbstractContextManager[Any]] = nullcontext,
) -> Reference:
    """The steps on one device: the microbatches of all replicas one after the other, each loss weighted by its samples,
    random numbers by step, layer and microbatch. They run within what `within` makes of the model."""
    net = tie(one_device(layers, seed), tied).to(device=device, dtype=dtype)
    update = optimizer(net.parameters()) if optimizer is not None else None
    found = Reference()
    with within(net):
        for step, (inputs, targets) in enumerate(batches):
            samples = (inputs if isinstance(inputs, Tensor) else inputs[0]).shape[0]
            net.zero_grad()
            total = 0.0
            for number, (a, b) in enumerate(chain(*sample_cuts(plan, samples))):
                value = _part(inputs, a, b, device)
                if isinstance(value, tuple) and len(value) == 1:
                    value = value[0]
                for name, layer in zip(net._modules, net):  # one that is there twice included
                    seed_randomness(derived_seed(seed, step, name, number), torch.device(device))
                    value = layer(value)
                mean = loss(value, _part(targets, a, b, device))
                share = (b - a) / samples
                (mean * share).backward()
                total += mean.item() * share
            found.gradients.append({n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None})
            if update is not None:
                update.step()
            found.losses.append(total)
    found.parameters = {name: p.detach() for name, p in net.named_parameters()}
    found.buffers = dict(net.named_buffers())
    return found


def _part(tensors: Any, a: int, b: int, device: torch.device | str) -> Any:
    if isinstance(tensors, Tensor):
        return tensors[a:b].to(device)
    return tuple(t[a:b].to(device) for t in tensors)


# -- differences ---------------------------------------------------------------------------------------------------


@dataclass
class Differences:
    """The largest difference over all steps, by kind and name."""

    loss: float = 0.0
    gradients: dict[str, float] = field(default_factory=dict)
    parameters: dict[str, float] = field(default_factory=dict)
    buffers: dict[str, float] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        return max(self.loss, *self.gradients.values(), *self.parameters.values(), *self.buffers.values())

    def merge(self, other: Differences) -> None:
        """Take over what is larger: another rank's view of the same steps."""
        self.loss = max(self.loss, other.loss)
        for mine, theirs in zip(self._tables(), other._tables()):
            for name, value in theirs.items():
                mine[name] = max(mine.get(name, 0.0), value)

    def require(self, known: Reference) -> None:
        """What one device has and no rank spoke of differs without bound."""
        wanted = ({n for step in known.gradients for n in step}, known.parameters, known.buffers)
        for table, names in zip(self._tables(), wanted):
            for name in names:
                table.setdefault(name, math.inf)

    def _tables(self) -> tuple[dict[str, float], ...]:
        return self.gradients, self.parameters, self.buffers


def difference(ours: Tensor | None, theirs: Tensor | None, largest: float = 0.0) -> float:
    """How far `ours` is from one device's; `largest` is the largest value of the tensors of its kind."""
    if ours is None or theirs is None:
        return 0.0 if ours is theirs else math.inf
    if ours.shape != theirs.shape:
        return math.inf
    if not theirs.numel():
        return 0.0
    a, b = ours.detach().double().cpu(), theirs.detach().double().cpu()
    apart = (a - b).abs().max().item()
    scale = max(b.abs().max().item(), FLOOR * largest)
    if not apart:
        return 0.0
    value = apart / scale if scale else math.inf
    return math.inf if math.isnan(value) else value


def compare(engine: Engine, batches: Batches, known: Reference) -> Differences:
    """Run the engine's steps here and hold what this rank has against one device's."""
    found = Differences()
    for step, (inputs, targets) in enumerate(batches):
        result = engine.step(inputs, targets)
        expected = torch.tensor(known.losses[step], dtype=torch.float64)
        found.loss = max(found.loss, difference(torch.tensor(result.loss, dtype=torch.float64), expected))
        ours = {name: None if p.grad is None else whole(p.grad) for name, p in engine.named_parameters()}
        _note(found.gradients, ours, known.gradients[step])
    parameters = {name: whole(parameter) for name, parameter in engine.named_parameters()}
    _note(found.parameters, parameters, known.parameters)
    buffers = {name: whole(buffer) for name, buffer in engine.named_buffers()}
    _note(found.buffers, buffers, known.buffers)
    return found


def between(ours: Reference, theirs: Reference) -> Differences:
    """Two runs of one device."""
    found = Differences(max(abs(a - b) / abs(b) if b else 0.0 for a, b in zip(ours.losses, theirs.losses)))
    for mine, its in zip(ours.gradients, theirs.gradients):
        _note(found.gradients, mine, its)
    _note(found.parameters, ours.parameters, theirs.parameters)
    _note(found.buffers, ours.buffers, theirs.buffers)
    return found


def _note(table: dict[str, float], ours: Mapping[str, Tensor | None], theirs: Mapping[str, Tensor]) -> None:
    largest = max((t.abs().max().item() for t in theirs.values() if t.numel()), default=0.0)
    for name, tensor in ours.items():
        value = difference(tensor, theirs.get(name), largest)
        table[name] = max(table.get(name, 0.0), value)
