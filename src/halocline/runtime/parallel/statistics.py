"""Running statistics of normalisation layers when updates do not come in the order of one device.

One device updates r <- (1 - f) r + f s for every microbatch in turn (s: its statistics, f: the momentum): once or more
often in its forward, and again in its backward where torch.utils.checkpoint runs layers once more. A copy of the stage
in a mirrored pipe or another replica sees only some microbatches, and a schedule runs forwards ahead of backwards. Each
update is affine in r, so the updates of each forward and backward are collected apart from r, and the step adds them
up, each with what later ones (n of them, on one device) leave of it:

    r_end = (1 - f)^N r_start + sum_m t_m (1 - f)^n_m        t_m: what the updates make of r = 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from halocline.runtime.layers import Layers, modules_in

Norm = Any
"""A torch.nn normalisation that keeps running statistics: torch's types say that they might be None."""


def tracked(layers: Layers) -> list[Norm]:
    """The modules whose forward updates running statistics."""
    every = dict.fromkeys(module for _, module in modules_in(layers))
    return [m for m in every if isinstance(m, _NormBase) and m.track_running_stats and m.running_mean is not None]


def plain(module: Norm) -> bool:
    """Whether a norm's forward is torch's own, which in training only updates its statistics and never uses them."""
    return type(module).forward.__module__.startswith("torch.nn.")


class RunningStatistics:
    """The terms of one stage's copy in one step."""

    def __init__(self, modules: Sequence[Norm], total: int, trial: bool = False) -> None:
        # Without a momentum InstanceNorm changes nothing, nor does BatchNorm that cannot count.
        counts = [m for m in modules if isinstance(m, _BatchNorm) and m.num_batches_tracked is not None]
        self._all = [module for module in modules if module.momentum is not None or module in counts]
        self.total = total
        """Microbatches of the step over all copies."""
        self.trial = trial
        """Whether updates are also made at once, which is right if no backward turns out to make any."""
        self.again = True
        """Whether backwards may update statistics, too: found out at the end of a trial."""
        self.begin()

    def begin(self) -> None:
        """Start a step: collect from zero. Modules in evaluation mode use their statistics and change none."""
        self.modules = [module for module in self._all if module.training]
        device = self.modules[0].running_mean.device if self.modules else None
        self.counts = torch.zeros(len(self.modules), 2 * self.total, dtype=torch.float64, device=device)
        """Updates of each module, by forward and backward of each microbatch."""
        self.terms: list[dict[int, list[Tensor]]] = [{} for _ in self.modules]
        self.start = [[t.clone() for t in _state(module)] for module in self.modules if self.trial]

    @contextmanager
    def collecting(self, index: int, speaks: bool, backward: bool = False) -> Iterator[None]:
        """A forward or backward of microbatch `index` (counted over all copies): its updates go to the terms.

        All ranks of a team find the same ones; the one that `speaks` for it keeps them. Of a backward in two halves
        the first that updates a module counts, as the other only does it again.
        """
        with _replaced(self.modules, torch.clone if self.trial else torch.zeros_like), _counted(self.modules):
            yield
            after = [(_state(m), m.num_batches_tracked.double()) for m in self.modules]
        for number, (module, (state, count)) in enumerate(zip(self.modules, after)):
            terms = state[:2]
            if self.trial:
                begun = module.num_batches_tracked.double() if module.num_batches_tracked is not None else 0.0
                count = count - begun
                terms = [_term(module, own, value, begun, count) for own, value in zip(_state(module), terms)]
                for own, value in zip(_state(module), state):
                    own.copy_(value)
            if not isinstance(module, _BatchNorm):  # one that was compiled may not have been counted
                count = count.maximum((terms[0] != 0).any().double())
            if speaks:
                self._keep(number, 2 * index + backward, count, terms)

    def _keep(self, number: int, place: int, count: Tensor, found: list[Tensor]) -> None:
        known = self.counts[number, place].clone()
        self.counts[number, place] = torch.where(known == 0, count, known)
        pairs = zip(found, self.terms[number].get(place, found))
        self.terms[number][place] = [torch.where(known == 0, new, old) for new, old in pairs]

    def finish(self, summed: Callable[[Tensor], Tensor]) -> None:
        """Write the statistics that one device would have now; `summed` is a tensor's sum over copies."""
        if not self.modules:
            return
        counts = summed(self.counts)
        if self.trial:
            self.again = bool(counts[:, 1::2].any())
            if not self.again:
                return
        for module, state in zip(self.modules, self.start):
            for own, value in zip(_state(module), state):
                own.copy_(value)
        self.trial = False
        every = counts.sum(1, keepdim=True)
        later = every - counts.cumsum(1)
        kept, weights = [], []
        for number, module in enumerate(self.modules):
            if module.momentum is None:  # an average of all
                reached = module.num_batches_tracked + every[number]
                kept.append(torch.where(every[number] > 0, 1 - every[number] / reached.clamp(min=1), 1.0))
                weights.append(counts[number] / reached.clamp(min=1))
            else:
                kept.append((1 - module.momentum) ** every[number])
                weights.append((1 - module.momentum) ** later[number])
        flat = torch.cat([t for number in range(len(self.modules)) for t in self._sums(number, weights[number])])
        start, flat = 0, summed(flat)
        for number, module in enumerate(self.modules):
            mean, variance, *counters = _state(module)
            for buffer in (mean, variance):
                part = flat[start : start + buffer.numel()].view(buffer.shape)
                buffer.mul_(kept[number]).add_(part.to(buffer.dtype))
                start += buffer.numel()
            for counter in counters:
                counter.add_(every[number, 0].to(counter.dtype))

    def _sums(self, number: int, weights: Tensor) -> Iterator[Tensor]:
        """The terms of a module, weighted: of its mean and of its variance."""
        for which, buffer in enumerate(_state(self.modules[number])[:2]):
            total = torch.zeros_like(buffer, dtype=torch.float64)
            for place, terms in self.terms[number].items():
                total += terms[which] * weights[place]
            yield total.reshape(-1)


@contextmanager
def _counted(modules: Sequence[Norm]) -> Iterator[None]:
    """Let modules that do not count their updates do so."""

    def count(module: Any, args: Any, output: Any) -> None:
        module.num_batches_tracked.add_(1)

    with ExitStack() as hooks:
        for module in modules:
            if not isinstance(module, _BatchNorm):
                hooks.enter_context(module.register_forward_hook(count))
        yield


@contextmanager
def _replaced(modules: Sequence[Norm], make: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Modules with other statistics in place of theirs, for a while."""
    saved = [(m.running_mean, m.running_var, m.num_batches_tracked) for m in modules]
    for m in modules:
        m.running_mean, m.running_var = make(m.running_mean), make(m.running_var)
        none = torch.zeros((), dtype=torch.long, device=m.running_mean.device)
        m.num_batches_tracked = make(m.num_batches_tracked if m.num_batches_tracked is not None else none)
    try:
        yield
    finally:
        for m, (mean, variance, count) in zip(modules, saved):
            m.running_mean, m.running_var, m.num_batches_tracked = mean, variance, count


def frozen(modules: Sequence[Norm]) -> AbstractContextManager[None]:
    """A forward whose updates are thrown away: a recomputation must not count a microbatch twice."""
    return _replaced(modules, torch.clone)


@contextmanager
def any_momentum(modules: Sequence[Norm]) -> Iterator[None]:
    """A forward without data: a momentum of None would divide by a counter that has no value there."""
    averaging = [module for module in modules if module.momentum is None]
    for module in averaging:
        module.momentum = 0.0
    try:
        yield
    finally:
        for module in averaging:
            module.momentum = None


def _term(module: Norm, before: Tensor, after: Tensor, begun: Tensor | float, count: Tensor) -> Tensor:
    """What `count` updates would have made of zero, of a counter that had `begun`, too."""
    if module.momentum is None:
        return (after * (begun + count) - before * begun) / count.clamp(min=1)
    return after - before * (1 - module.momentum) ** count


def _state(module: Norm) -> list[Tensor]:
    """What updates change: mean, variance and, but for InstanceNorm, how many there were."""
    counted = isinstance(module, _BatchNorm) and module.num_batches_tracked is not None
    return [module.running_mean, module.running_var, *([module.num_batches_tracked] if counted else [])]
