"""Dropout where tensor ranks hold parts: found in a stage's first forward that trains, and refused.

Random numbers are drawn in the order and shape of what is computed. What every tensor rank holds whole gets the numbers
one device would draw; some heads, some features or some tokens would get others. So follow what comes of a split module
until it is whole again, and refuse whatever draws on the way.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from halocline.runtime.guards.read_statistics import tensors_in
from halocline.runtime.layers import Layers
from halocline.runtime.parallel.shard import is_sharded
from halocline.runtime.parallel.tensor_parallel import COLUMN, HEADS, declared, is_sequential

_DROPOUTS = {
    function: inspect.signature(function)
    for function in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
}
_DRAWS = {"bernoulli", "bernoulli_", "rand_like", "randn_like", "randint_like", "normal_", "uniform_", "exponential_"}
_DRAWS |= {"multinomial", "rrelu", "gumbel_softmax", "dropout_", "native_dropout"}


@contextmanager
def refusing(layers: Layers) -> Iterator[None]:
    """Refuse random numbers in parts while these layers run."""
    parts = _Parts()
    with ExitStack() as hooks:
        for name, layer in layers:
            tokens = is_sequential(layer)  # then all it has are parts
            hooks.enter_context(layer.register_forward_pre_hook(partial(parts.enter, name, tokens)))
            for path, word in declared(layer).items():
                if word != HEADS:
                    hook = partial(parts.leave, tokens or word == COLUMN)
                    hooks.enter_context(layer.get_submodule(path).register_forward_hook(hook))
        with parts:
            yield


class _Parts(TorchFunctionMode):
    """Knows which tensors are parts: those that split modules make, and what is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.known = WeakTensorKeyDictionary()
        self.layer = ""

    def enter(self, layer: str, parts: bool, module: nn.Module, args: Any) -> None:
        """A layer begins; whether what it is given is in parts."""
        self.layer = layer
        self.known.clear()
        if parts:
            self._add(args)

    def leave(self, part: bool, module: nn.Module, args: Any, output: Any) -> None:
        """A split module gives a part, or all again; logits that stayed divided are seen by their type."""
        if part or is_sharded(output):
            self._add(output)
        else:
            for tensor in tensors_in(output):
                self.known.pop(tensor, None)

    def _add(self, value: Any) -> None:
        for tensor in tensors_in(value):
            self.known[tensor] = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        part = any(tensor in self.known for tensor in tensors_in((args, kwargs)))
        if part and (chance := _chance(func, args, kwargs)):
            raise ValueError(
                f"layer {self.layer} draws random numbers ({chance}) for activations that tensor ranks hold in parts, "
                f"and one device would draw others: set it to 0 (e.g. attention_dropout=0), or use tensor = 1"
            )
        result = func(*args, **kwargs)
        if part:
            self._add(result)
        return result


def _chance(func: Any, args: Any, kwargs: Any) -> str:
    """What a function draws; empty if nothing."""
    name = getattr(func, "__name__", "")
    if func in _DROPOUTS:
        call = _DROPOUTS[func].bind(*args, **kwargs)
        call.apply_defaults()
        p, training = call.arguments["p"], call.arguments["training"]
        return f"{name}, p = {p:g}" if p and training else ""
    if name == "scaled_dot_product_attention":
        p = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        return f"attention dropout, p = {p:g}" if p else ""
    return name if name in _DRAWS else ""
