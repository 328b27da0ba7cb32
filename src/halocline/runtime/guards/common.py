"""What layers of several stages have in common besides modules: a dict, a list, a tensor, an object, a parameter of
another's. On one device they are one; stages on several ranks would each have their own, so that what one stage writes
there no other reads, and a gradient that one finds there never arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from halocline.plan.plan import Plan
from halocline.runtime.layers import Layer
from halocline.tiling.untouched import holders


@dataclass(frozen=True)
class Common:
    """Of the stages of one plan."""

    things: dict[int, Any] = field(default_factory=dict)
    """By identity what several stages lead to and could change, tensors included."""
    stages: dict[int, str] = field(default_factory=dict)
    """Those that do -> the layers, in words."""
    owners: dict[nn.Parameter, str] = field(default_factory=dict)
    """The parameters of layers that are built, with their names."""

    @contextmanager
    def borrowing_nothing(self, layers: Sequence[tuple[str, nn.Module]]) -> Iterator[None]:
        """A forward that uses no parameter of another stage's layers which its own do not register."""
        mine = {parameter for _, layer in layers for parameter in layer.parameters()}
        strangers = {id(p): name for p, name in self.owners.items() if p not in mine}
        if not strangers:
            yield
            return
        with _Operands(strangers) as seen:
            yield
        for name in seen.found:
            raise ValueError(
                f"a forward of layers {layers[0][0]} to {layers[-1][0]} uses {name}, a parameter of another stage that "
                f"none of them registers, so that it cannot be tied: make it an attribute of the layer "
                f"(self.weight = ...), or put both into one stage"
            )


class _Operands(TorchFunctionMode):
    def __init__(self, strangers: dict[int, str]) -> None:
        super().__init__()
        self.strangers, self.found = strangers, dict[str, None]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for operand in tree_leaves((args, kwargs)):
            if id(operand) in self.strangers and getattr(func, "__name__", "") != "__get__":
                self.found[self.strangers[id(operand)]] = None
        return func(*args, **(kwargs or {}))


def common(named: Sequence[tuple[str, Layer]], plan: Plan) -> Common:
    """What the stages of a plan have in common. What only hooks know is left out: it may be the whole model."""
    if len(plan.stages) == 1:
        return Common()
    found = Common()
    seen: dict[int, tuple[Any, int, str]] = {}
    for number, stage in enumerate(plan.stages):
        for name, layer in named[slice(*stage.layers)]:
            if isinstance(layer, nn.Module):
                found.owners.update(
                    (p, f"{name}.{key}") for key, p in layer.named_parameters() if p not in found.owners
                )
            for thing in _things(name, layer):
                _, first, other = seen.setdefault(id(thing), (thing, number, name))
                if first != number:
                    found.things[id(thing)] = thing
                    for at in (first, number):
                        found.stages.setdefault(at, f"{other} and {name}")
    return found


def _things(name: str, layer: Layer) -> Iterator[Any]:
    for holder in holders({name: layer}, hooks=False):
        yield holder.thing
        yield from (v for v in holder.content.values() if isinstance(v, Tensor) and not isinstance(v, nn.Parameter))
