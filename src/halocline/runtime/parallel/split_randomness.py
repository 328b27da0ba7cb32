"""Dropout where tensor ranks hold parts: found in a stage's first forward that trains, and refused.

Random numbers are drawn in the order and shape of what is computed. What every tensor rank holds whole gets the numbers
one device would draw; some heads, some features or some tokens would get others. So follow what comes of a split module
until it is whole again, and refuse whatever draws on the way.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

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
            hooks.enter_context(layer.register_forward_pre_hook(_entering(parts, name, tokens)))
            for path, word in declared(layer).items():
                if word != HEADS:
                    hook = _leaving(parts, tokens or word == COLUMN)
                    hooks.enter_context(layer.get_submodule(path).register_forward_hook(hook))
        with parts:
            yield


def _entering(parts: _Parts, name: str, tokens: bool) -> Any:
    return lambda module, args: parts.enter(name, args if tokens else ())


def _leaving(parts: _Parts, part: bool) -> Any:
    """What a split module gives is a part, or whole again; logits that stayed divided are seen by their type."""
    return lambda module, args, output: (parts.add if part or is_sharded(output) else parts.drop)(output)


class _Parts(TorchFunctionMode):
    """Knows which tensors are parts: those that were added, and what is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.known = WeakTensorKeyDictionary()
        self.layer = ""

    def enter(self, layer: str, value: Any) -> None:
        self.layer = layer
        self.known.clear()
        self.add(value)

    def add(self, value: Any) -> None:
        for tensor in _tensors(value):
            self.known[tensor] = True

    def drop(self, value: Any) -> None:
        for tensor in _tensors(value):
            self.known.pop(tensor, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        part = any(tensor in self.known for tensor in _tensors((args, kwargs)))
        if part and (chance := _chance(func, args, kwargs)):
            raise ValueError(
                f"layer {self.layer} draws random numbers ({chance}) for activations that tensor ranks hold in parts, "
                f"and one device would draw others: set it to 0 (e.g. attention_dropout=0), or use tensor = 1"
            )
        result = func(*args, **kwargs)
        if part:
            self.add(result)
        return result


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, Tensor)]


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
