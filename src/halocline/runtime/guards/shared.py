"""What several layers share: one device has it once, wherever it is used from.

Modules: layers of one stage simply hold the same one. Layers of several stages hold copies whose parameters are tied;
what cannot be tied (a module that a layer uses without registering it, running statistics) is refused. Functions that
make layers are asked what they have closed over: those that would build around one module are called at once.

Anything else (a dict, a list, a tensor, an object, a parameter of another's): stages on several ranks would each have
their own, so that what one writes there no other reads, and a gradient that one finds there never arrives.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from halocline.plan.plan import Plan
from halocline.runtime.layers import Layer, Layers, build
from halocline.runtime.parallel.statistics import tracked
from halocline.tiling.untouched import holders

Named = list[tuple[str, Layer]]


def built_where_shared(named: Sequence[tuple[str, Layer]], seed: int) -> Named:
    """The layers; those are built that have a module in common with another."""
    common = {id(layer) for _, users in _users(named) for _, layer in users} | _around_parameters(named)
    return [(name, build(name, layer, seed) if id(layer) in common else layer) for name, layer in named]


def _around_parameters(named: Sequence[tuple[str, Layer]]) -> set[int]:
    """The functions that would build around a parameter which another layer has or is built around, too."""
    found: dict[int, set[int]] = {}
    for name, layer in named:
        for holder in holders({name: layer}, hooks=False):
            for value in holder.content.values():
                if isinstance(value, nn.Parameter):
                    found.setdefault(id(value), set()).add(id(layer))
    return {layer for layers in found.values() if len(layers) > 1 for layer in layers}


def _users(named: Sequence[tuple[str, Layer]]) -> list[tuple[nn.Module, list[tuple[str, Layer]]]]:
    """Modules with parameters or buffers of their own that several layers lead to, with those layers."""
    found: dict[nn.Module, list[tuple[str, Layer]]] = {}
    for name, layer in named:
        for holder in holders({name: layer}, hooks=False):
            module = holder.owner
            if isinstance(module, nn.Module) and (module._parameters or module._buffers):
                found.setdefault(module, []).append((name, layer))
    return [(module, users) for module, users in found.items() if len(users) > 1]


def shared_stages(named: Sequence[tuple[str, Layer]], plan: Plan) -> set[int]:
    """The stages that have modules in common with others. Refuses what they cannot share."""
    at = {name: s for s, stage in enumerate(plan.stages) for name, _ in named[slice(*stage.layers)]}
    found: set[int] = set()
    for module, users in _users(named):
        for (first, one), (second, other) in combinations(users, 2):
            kind = type(module).__name__
            if at[first] == at[second]:
                if plan.stages[at[first]].tensor > 1:
                    raise ValueError(
                        f"layers {first} and {second} share a {kind}, and stages[{at[first]}] has tensor = "
                        f"{plan.stages[at[first]].tensor}: make two of it, and name their parameters as tied"
                    )
                continue
            found |= {at[first], at[second]}
            fix = "put both into one stage, or make two of it"
            for name, layer in ((first, one), (second, other)):
                assert isinstance(layer, nn.Module)
                if all(part is not module for part in layer.modules()):
                    raise ValueError(
                        f"layers {first} and {second} of stages {at[first]} and {at[second]} share a {kind}, and layer "
                        f"{name} does not register it, so that it cannot be tied: make it an attribute of the layer "
                        f"(self.part = ...), or {fix}"
                    )
            if module.training and tracked([("", module)]):
                raise ValueError(
                    f"layers {first} and {second} of stages {at[first]} and {at[second]} share a {kind}, whose running "
                    f"statistics both update in turn: {fix}"
                )
    return found


def buffer_names(named: Sequence[tuple[str, Layer]]) -> dict[str, str]:
    """Further names of buffers -> the first, by which one device knows them."""
    first: dict[Any, str] = {}
    names = {}
    for name, layer in named:
        for path, module in layer.named_modules(remove_duplicate=False) if isinstance(layer, nn.Module) else ():
            for key, buffer in module._buffers.items():
                own = ".".join(part for part in (name, path, key) if part)
                names[own] = first.setdefault((id(module), key) if buffer is None else id(buffer), own)
    return {own: name for own, name in names.items() if own != name}


def apart(stages: Sequence[Named]) -> list[Named]:
    """The layers of a rank's stages. A stage that has modules in common with one before it is given copies."""
    seen: set[nn.Module] = set()
    found = []
    for named in stages:
        mine = {part for _, layer in named if isinstance(layer, nn.Module) for part in layer.modules()}
        if any(part in seen and (part._parameters or part._buffers) for part in mine):
            copies = copy.deepcopy([layer for _, layer in named])
            named = [(name, layer) for (name, _), layer in zip(named, copies)]
        seen |= mine
        found.append(named)
    return found


# -- besides modules -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Common:
    """What the layers of several stages have in common besides modules."""

    things: dict[int, Any] = field(default_factory=dict)
    """By identity what several stages lead to and could change, tensors included."""
    stages: dict[int, str] = field(default_factory=dict)
    """Those that do -> the layers, in words."""
    owners: dict[nn.Parameter, str] = field(default_factory=dict)
    """The parameters of layers that are built, with their names."""

    @contextmanager
    def borrowing_nothing(self, layers: Layers) -> Iterator[None]:
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
