"""Modules that stand in several layers: one device runs one module, wherever it is called from.

Layers of one stage simply hold it. Layers of several stages hold copies whose parameters are tied; what cannot be tied
(a module that a layer uses without registering it, running statistics) is refused. Functions that make layers are
asked what they have closed over: those that would build around one module are called at once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from torch import nn

from halocline.plan.plan import Plan
from halocline.runtime.layers import Layer, build
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
