"""Running statistics of normalisation layers when several copies of a stage each see part of the microbatches.

One device updates r <- (1 - f) r + f s for every microbatch in turn (s: its statistics, f: the momentum). A copy of
the stage in a mirrored pipe or another replica sees only some of them. Each update is affine in r, so each copy
collects its own terms apart from r, weighted by what later microbatches will leave of them, and the step adds them up:

    r_end = r_start prod_m (1 - f_m) + sum_m f_m s_m prod_{k > m} (1 - f_k)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

Tracked = tuple[str, _NormBase]


def tracked(layers: Sequence[tuple[str, nn.Module]]) -> list[_NormBase]:
    """The modules whose forward updates running statistics."""
    return [
        module
        for _, layer in layers
        for module in layer.modules()
        if isinstance(module, _NormBase) and module.track_running_stats and module.running_mean is not None
    ]


@contextmanager
def unchanged(layers: Sequence[tuple[str, nn.Module]]) -> Iterator[None]:
    """A forward that may change no other buffer: recomputed it would change it twice, and copies of a stage would each
    change their own. A cache that grows is none of that."""
    before = {name: buffer.clone() for name, buffer in _untracked_buffers(layers).items()}
    yield
    for name, buffer in _untracked_buffers(layers).items():
        was = before.get(name)
        if was is not None and was.shape == buffer.shape and not _same(was, buffer):
            raise ValueError(
                f"a forward changes its layer's buffer {name}, which would happen more than once where a stage "
                f"recomputes or has a mirrored pipe or replicas: use recompute = false, pipes = 1 and replicas = 1, or "
                f"set that module to eval()"
            )


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN to NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _untracked_buffers(layers: Sequence[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    found = {}
    for name, layer in layers:
        for path, module in layer.named_modules():
            if isinstance(module, _NormBase):
                continue
            for key, buffer in module.named_buffers(recurse=False):
                found[".".join(part for part in (name, path, key) if part)] = buffer
    return found


class RunningStatistics:
    """The terms of one stage's copy in one step."""

    def __init__(self, modules: Sequence[_NormBase], total: int) -> None:
        self._all = list(modules)
        self.total = total
        """Microbatches of the step over all copies."""
        self.begin()

    def begin(self) -> None:
        """Start a step: remember where the counters stand, and collect from zero. Modules in evaluation mode use their
        statistics and change none."""
        self.modules = [module for module in self._all if module.training]
        self.started = [int(m.num_batches_tracked) if m.num_batches_tracked is not None else 0 for m in self.modules]
        self.terms = [(torch.zeros_like(_mean(m)), torch.zeros_like(_variance(m))) for m in self.modules]

    def _factor(self, number: int, index: int) -> float:
        """f of microbatch `index` of the step, as one device would use it."""
        module = self.modules[number]
        if module.momentum is None:
            return 1.0 / (self.started[number] + index + 1) if isinstance(module, _BatchNorm) else 0.0
        return module.momentum

    def _remains(self, number: int, after: int) -> float:
        """What the microbatches from `after` on leave of what was there before."""
        product = 1.0
        for index in range(after, self.total):
            product *= 1.0 - self._factor(number, index)
        return product

    @contextmanager
    def collecting(self, index: int, speaks: bool) -> Iterator[None]:
        """A forward of microbatch `index` (counted over all copies): its updates go to the terms.

        All ranks of a team find the same ones; the one that `speaks` for it keeps them.
        """
        saved = []
        for number, module in enumerate(self.modules):
            saved.append((module.running_mean, module.running_var, module.num_batches_tracked))
            module.running_mean = torch.zeros_like(_mean(module))
            module.running_var = torch.zeros_like(_variance(module))
            if module.num_batches_tracked is not None:
                module.num_batches_tracked = torch.full_like(module.num_batches_tracked, self.started[number] + index)
        try:
            yield
            for number, (module, terms) in enumerate(zip(self.modules, self.terms) if speaks else ()):
                remains = self._remains(number, index + 1)
                terms[0].add_(_mean(module), alpha=remains)
                terms[1].add_(_variance(module), alpha=remains)
        finally:
            for module, (mean, variance, count) in zip(self.modules, saved):
                module.running_mean, module.running_var, module.num_batches_tracked = mean, variance, count

    def flat(self) -> Tensor:
        """This copy's terms, to be summed over copies."""
        return torch.cat([t.reshape(-1).double() for pair in self.terms for t in pair])

    def finish(self, summed: Tensor) -> None:
        """Write the statistics that one device would have now."""
        start = 0
        for number, module in enumerate(self.modules):
            kept = self._remains(number, 0)
            for buffer in (_mean(module), _variance(module)):
                part = summed[start : start + buffer.numel()].view(buffer.shape)
                buffer.mul_(kept).add_(part.to(buffer.dtype))
                start += buffer.numel()
            if module.num_batches_tracked is not None and isinstance(module, _BatchNorm):  # InstanceNorm counts nothing
                module.num_batches_tracked.add_(self.total)


@contextmanager
def frozen(modules: Sequence[_NormBase]) -> Iterator[None]:
    """A forward whose updates are thrown away: a recomputation must not count a microbatch twice."""
    saved = [(m.running_mean, m.running_var, m.num_batches_tracked) for m in modules]
    for module in modules:
        module.running_mean, module.running_var = _mean(module).clone(), _variance(module).clone()
        if module.num_batches_tracked is not None:
            module.num_batches_tracked = module.num_batches_tracked.clone()
    try:
        yield
    finally:
        for module, (mean, variance, count) in zip(modules, saved):
            module.running_mean, module.running_var, module.num_batches_tracked = mean, variance, count


@contextmanager
def any_momentum(modules: Sequence[_NormBase]) -> Iterator[None]:
    """A forward without data: a momentum of None would divide by a counter that has no value there."""
    averaging = [module for module in modules if module.momentum is None]
    for module in averaging:
        module.momentum = 0.0
    try:
        yield
    finally:
        for module in averaging:
            module.momentum = None


def _mean(module: _NormBase) -> Tensor:
    assert module.running_mean is not None
    return module.running_mean


def _variance(module: _NormBase) -> Tensor:
    assert module.running_var is not None
    return module.running_var
