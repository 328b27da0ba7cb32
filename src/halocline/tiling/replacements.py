"""Where torch asks no rule about a tile, something of torch's own is replaced: by one that looks for tiles first.

Nothing is replaced by an import: a process that makes no tile has torch as it is. See `TileTensor.wrap`.
"""

from __future__ import annotations

from functools import wraps
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import _SingleLevelFunction
from torch.jit._state import _try_get_jit_cached_function
from torch.nn.modules.batchnorm import _BatchNorm as BatchNormModule

from halocline.tiling.rules.attributes import data
from halocline.tiling.rules.custom import apply
from halocline.tiling.rules.differentiate import backward_of_all
from halocline.tiling.tensor import SCRIPTED, TileTensor, find_tiles, rule, untiled

_LOCK = Lock()
_DONE: list[tuple[Any, str, Any]] = []
"""What was replaced: (owner, name, torch's own)."""


def install() -> None:
    """Replace what has to be, once in a process."""
    with _LOCK:
        if _DONE:
            return
        for owner, name, replace in _REPLACEMENTS:
            own = getattr(owner, name)
            setattr(owner, name, replace(own))
            _DONE.append((owner, name, own))
        rule(getattr(Tensor, "data").__get__)(data)  # noqa: B009  (by which torch now looks for the rule)


def _forward_of_sync_batch_norm(forward: Any) -> Any:
    @wraps(forward)
    def on_tiles_too(self: nn.SyncBatchNorm, input: Tensor) -> Tensor:
        if isinstance(input, TileTensor):  # BatchNorm, whose statistics are the whole image's anyway
            return BatchNormModule.forward(self, input)
        return forward(self, input)

    return on_tiles_too


def _backward(own: Any) -> Any:
    @wraps(own)
    def of_tiles_too(tensors: Any, *args: Any, **kwargs: Any) -> None:
        (backward_of_all if find_tiles((tensors, *args, *kwargs.values())) else own)(tensors, *args, **kwargs)

    return of_tiles_too


def _make_grads(own: Any) -> Any:
    def whole_grads(outputs: Any, grads: Any, is_grads_batched: bool) -> Any:
        return own(outputs, [g.full() if isinstance(g, TileTensor) else g for g in grads], is_grads_batched)

    return whole_grads


def _call_of_scripted(call: Any) -> Any:
    """The Python function that was compiled runs in its place. What was traced has numbers of its example in it, and a
    scripted module has a state of its own: these are refused, here and by TileTensor."""

    def on_tiles_too(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not find_tiles((*args, *kwargs.values())):
            return call(self, *args, **kwargs)
        source = getattr(self, "_torchdynamo_inline", None)  # kept for torch.compile to look into
        compiled = None if source is None else _try_get_jit_cached_function(source)
        if source is None or compiled is None or compiled.qualified_name != self.qualified_name:  # or from a file
            raise untiled(self, args, kwargs, why=SCRIPTED)
        return source(*args, **kwargs)

    return on_tiles_too


def _data(own: Any) -> property:
    def set_data(input: Tensor, data: Tensor) -> None:
        if isinstance(data, TileTensor):
            raise untiled(own.__set__, (input, data), why="a tensor's data cannot be what one rank holds of another")
        own.__set__(input, data)

    return property(own.__get__, set_data)


_REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    # It talks to its own process group from inside an autograd.Function, and refuses the CPU.
    (nn.SyncBatchNorm, "forward", _forward_of_sync_batch_norm),
    # Autograd takes the arguments of a function as they are, whatever their type. This is what Function.apply calls,
    # which models may have kept.
    (_SingleLevelFunction, "apply", lambda own: classmethod(apply)),
    # Until torch 2.11, backward asks no rule at all. Reentrant checkpoints call it.
    (torch.autograd, "backward", _backward),
    # backward and grad ask rules for what is differentiated only, and not for the gradients that they are given.
    (torch.autograd, "_make_grads", _make_grads),
    # TorchScript calls no function that a rule could stand for: it would run on one tile.
    (torch.jit.ScriptFunction, "__call__", _call_of_scripted),
    # Nor is a rule asked when a plain tensor is given a tile as its data.
    (Tensor, "data", _data),
)
"""(owner, name, what makes the replacement of torch's own)."""
