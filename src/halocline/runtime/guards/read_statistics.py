"""Running statistics that a forward uses while it trains: refused where a stage recomputes or has copies, which do not
have one device's statistics before the step ends. torch's own norms only update them in training; a layer around one, a
hook, or a norm of the user's own may read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from halocline.runtime.layers import Layers, modules_in
from halocline.runtime.parallel.statistics import plain, tracked
from halocline.tiling.untouched import without_trace

_NORMS = {F.batch_norm, torch.batch_norm, F.instance_norm, torch.instance_norm}
_ABOUT = {"__get__", "size", "stride", "dim", "numel", "is_inference"}
"""What asks about a tensor and not for its values."""


@contextmanager
def unread(layers: Layers) -> Iterator[None]:
    """A forward that may update the running statistics of norms in training, and not use them."""
    with reading(layers) as read:
        yield
    for name in read():
        raise ValueError(
            f"a forward in training uses the running statistics of {name}, of which recomputations, mirrored pipes "
            f"and replicas have one device's only when a step has ended: use recompute = false, pipes = 1 and replicas "
            f"= 1, or set that module to eval()"
        )


@contextmanager
def reading(layers: Layers) -> Iterator[Callable[[], list[str]]]:
    """A forward, after which the norms in training are named whose running statistics it used."""
    norms = [norm for norm in tracked(layers) if norm.training]
    if not norms:
        yield list
        return
    watch = _StatisticsUsed(norms)

    begin = register_module_forward_pre_hook(watch.begin)
    end = register_module_forward_hook(watch.end, with_kwargs=True, always_call=True)
    with begin, end, watch:
        yield lambda: [name for name, module in modules_in(layers) if module in watch.found]


class _StatisticsUsed(TorchFunctionMode):
    """Notes the norms whose statistics are used."""

    def __init__(self, norms: Sequence[_NormBase]) -> None:
        super().__init__()
        self.norms, self.found = norms, set[nn.Module]()
        self._inside: list[nn.Module] = []
        """The modules whose forward runs, the innermost last."""
        self._asking = False

    def begin(self, module: nn.Module, args: Any) -> None:
        self._inside.append(module)

    def end(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._inside.pop()
        if module in self.norms and isinstance(module, _NormBase) and not plain(module) and not self._asking:
            self._asking = True
            try:
                self._ask(module, args, kwargs, output)
            finally:
                self._asking = False

    def _ask(self, norm: _NormBase, args: Any, kwargs: Any, output: Any) -> None:
        """Whether a norm of the user's own gives something else if its statistics are other numbers."""
        assert norm.running_mean is not None
        with without_trace([norm], norm.running_mean.device):
            for statistics in (norm.running_mean, norm.running_var):
                assert statistics is not None
                statistics.mul_(3).add_(2)
            other = type(norm).forward(norm, *args, **kwargs)
        if not all(map(same, tensors_in(output), tensors_in(other))):
            self.found.add(norm)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _NORMS and getattr(func, "__name__", "") not in _ABOUT and not self._asking:
            given = [t for t in tensors_in((args, kwargs)) if t.ndim == 1]
            for norm in self.norms if given else ():
                read = any(t is norm.running_mean or t is norm.running_var for t in given)
                if read and norm not in self._inside:
                    self.found.add(norm)
        return func(*args, **(kwargs or {}))


def tensors_in(value: Any) -> list[Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, Tensor)]


def same(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN to NaN."""
    a, b = (getattr(t, "local", t).detach() for t in (a, b))
    return bool(((a == b) | ((a != a) & (b != b))).all())
