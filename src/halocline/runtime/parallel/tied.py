"""Tied weights: one parameter that stands in several layers, wherever a plan puts those layers.

Inside a stage the layers hold one nn.Parameter. Where they fall into different stages, each stage holds a copy and
sums its gradient by itself; then, at the step, the copies' gradients are summed once over all ranks that hold one.
Equal gradients, equal values and equal optimizers keep the copies equal. Two copies on one rank share their memory, and
the first is updated for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from types import MappingProxyType

import torch
from torch import Tensor, nn

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.runtime.layers import Layer, Stages
from halocline.runtime.parallel.shard import give_gradient, is_sharded, settle, shard, span, split_dim
from halocline.runtime.processes.world import World

Pairs = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Tie:
    """One parameter under several names."""

    names: tuple[str, ...]
    """In the order of the layers; the parameter goes by the first."""
    stages: tuple[int, ...]
    """Of each name."""

    @property
    def name(self) -> str:
        return self.names[0]

    def within(self, stage: int) -> tuple[str, ...]:
        return tuple(name for name, at in zip(self.names, self.stages) if at == stage)

    @property
    def apart(self) -> tuple[int, ...]:
        """The stages that hold it."""
        return tuple(sorted(set(self.stages)))


def ties(pairs: Pairs, named: Sequence[tuple[str, Layer]], plan: Plan) -> tuple[Tie, ...]:
    """The ties that pairs of names make, and those of layers that come built with a parameter in common."""
    numbers = {name: number for number, (name, _) in enumerate(named)}
    groups: list[set[str]] = []
    shared = _shared(named)
    order = {name: number for number, name in enumerate(dict.fromkeys(name for pair in shared for name in pair))}
    for pair in (*pairs, *shared):
        for name in pair:
            if _layer(name) not in numbers:
                raise ValueError(
                    f"tied = {pair} names layer {_layer(name)!r}, and the model's layers are {named[0][0]} to "
                    f"{named[-1][0]}: write layer.parameter, e.g. ('{named[0][0]}.weight', '{named[-1][0]}.weight')"
                )
        joined = set(pair).union(*(g for g in groups if g & set(pair)))
        groups = [g for g in groups if not g & joined] + [joined]
    made = []
    for group in groups:
        names = tuple(sorted(group, key=lambda name: (numbers[_layer(name)], order.get(name, 0), name)))
        stages = tuple(
            next(s for s, stage in enumerate(plan.stages) if numbers[_layer(name)] < stage.layers[1]) for name in names
        )
        made.append(Tie(names, stages))
    return tuple(made)


def _shared(named: Sequence[tuple[str, Layer]]) -> list[tuple[str, str]]:
    """Pairs of names under which built layers hold the same nn.Parameter."""
    first: dict[int, str] = {}
    pairs = []
    for name, layer in named:
        if isinstance(layer, nn.Module):
            for key, parameter in layer.named_parameters(remove_duplicate=False):
                known = first.setdefault(id(parameter), f"{name}.{key}")
                if known != f"{name}.{key}":
                    pairs.append((known, f"{name}.{key}"))
    return pairs


def _layer(name: str) -> str:
    return name.partition(".")[0]


def parameter_of(module: nn.Module, name: str) -> nn.Parameter:
    """The parameter of a layer that the model calls `name`."""
    try:
        return module.get_parameter(name.partition(".")[2])
    except AttributeError as error:
        known = ", ".join(key for key, _ in module.named_parameters()) or "none"
        raise ValueError(
            f"tied names {name}, and layer {_layer(name)} has no such parameter: it has {known}"
        ) from error


def _put(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, key = name.partition(".")[2].rpartition(".")
    setattr(module.get_submodule(owner), key, parameter)


def tie(layers: nn.Sequential, pairs: Pairs) -> nn.Sequential:
    """One device: each group of tied names becomes one nn.Parameter, with the first one's value."""
    named: list[tuple[str, Layer]] = list(zip(layers._modules, layers))  # a module that is there twice included
    modules = dict(zip(layers._modules, layers))
    for found in ties(pairs, named, Plan.uniform(len(named))):
        kept = parameter_of(modules[_layer(found.name)], found.name)
        for name in found.names[1:]:
            _same_shape(found.name, kept, name, parameter_of(modules[_layer(name)], name))
            _put(modules[_layer(name)], name, kept)
    return layers


def _same_shape(first: str, kept: Tensor, second: str, other: Tensor) -> None:
    if kept.shape != other.shape:
        raise ValueError(
            f"{first} is {tuple(kept.shape)} and {second} is {tuple(other.shape)}: only parameters of one shape can be "
            f"tied"
        )


def tied_in(found: Sequence[Tie], layer: str, module: nn.Module) -> set[nn.Parameter]:
    return {parameter_of(module, name) for t in found for name in t.names if _layer(name) == layer}


def begin_alike(
    found: Sequence[Tie], layer: str, module: nn.Module, values: dict[str, Tensor], make: Callable[[str], nn.Module]
) -> None:
    """Give a layer that has just been built, and not been split yet, the first values of what it is tied to: every copy
    starts as the first does. `values` keeps those; `make` builds a layer whole, as its own rank does."""
    for one in found:
        for name in one.names:
            if _layer(name) != layer:
                continue
            mine = parameter_of(module, name)
            if name == one.name:
                values[name] = mine.detach()
                continue
            if one.name not in values:
                values[one.name] = parameter_of(make(_layer(one.name)), one.name).detach()
            _same_shape(one.name, values[one.name], name, mine)
            with torch.no_grad():
                mine.copy_(values[one.name])


class Ties:
    """The tied parameters that this rank holds."""

    def __init__(
        self,
        world: World,
        layout: Layout,
        found: Sequence[Tie],
        modules: Stages,
        buffers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.world, self.layout = world, layout
        self.names = {**buffers, **{name: t.name for t in found for name in t.names}}
        self.held: list[tuple[Tie, dict[int, nn.Parameter]]] = []
        """With the copy of each stage that is here."""
        self.aliases: set[nn.Parameter] = set()
        """Copies that share the memory of another on this rank, by which they are updated."""
        self.unspoken: set[Tensor] = set()
        """Copies that another stage's copy stands for, where a parameter counts once; buffers, too."""
        for layers in modules.values():
            for name, layer in layers:
                for key, buffer in layer.named_buffers():
                    if _layer(self.name(f"{name}.{key}")) not in dict(layers):
                        self.unspoken.add(buffer)
        for t in found:
            self._refuse_two_cuts(t)
        for t in found:
            self._hold(t, modules)
        self.world.make_groups([ranks for t in found if len(t.apart) > 1 for ranks in self._groups(t)])
        self._cut_alike = {t.name: self._alike(t) for t in found if len(t.apart) > 1}

    def name(self, name: str) -> str:
        """What a parameter is called on one device."""
        return self.names.get(name, name)

    def _refuse_two_cuts(self, t: Tie) -> None:
        """Two copies on one rank must be cut alike, to share their memory. Every rank finds this alike."""
        stages, pipes = self.layout.plan.stages, range(self.layout.plan.pipes)
        for a, b in combinations(t.apart, 2):
            held = [{rank for pipe in pipes for rank in self.layout.team(pipe, stage)} for stage in (a, b)]
            both = held[0] & held[1]
            if both and stages[a].tensor != stages[b].tensor:
                raise ValueError(
                    f"{t.name} is tied between stages[{a}] with tensor = {stages[a].tensor} and stages[{b}] with "
                    f"tensor = {stages[b].tensor}, both of which rank {min(both)} holds: give them the same degree"
                )

    def _hold(self, t: Tie, modules: Stages) -> None:
        copies: dict[int, nn.Parameter] = {}
        for stage in t.apart:
            if stage not in modules:
                continue
            layers = dict(modules[stage])
            names = t.within(stage)
            kept = parameter_of(layers[_layer(names[0])], names[0])
            for name in names[1:]:
                other = parameter_of(layers[_layer(name)], name)
                self._same_cut(names[0], kept, name, other)
            if copies:
                first = next(iter(copies.values()))
                self._same_cut(t.name, first, names[0], kept)
                kept = nn.Parameter(first.detach(), requires_grad=first.requires_grad)
                self.aliases.add(kept)
            for name in names:
                _put(layers[_layer(name)], name, kept)
            if stage != t.apart[0]:
                self.unspoken.add(kept)
            copies[stage] = kept
        if copies:
            self.held.append((t, copies))

    @staticmethod
    def _same_cut(first: str, kept: Tensor, second: str, other: Tensor) -> None:
        if split_dim(kept) != split_dim(other) or shard(kept).shape != shard(other).shape:
            raise ValueError(
                f"{first} and {second} are one parameter on one rank and are split differently among tensor ranks "
                f"(here {tuple(shard(kept).shape)} and {tuple(shard(other).shape)} of {tuple(kept.shape)}): declare "
                f"the same split for both, or put them into stages of equal tensor degree"
            )

    # -- the sum at the step -------------------------------------------------------------------------------------

    def _groups(self, t: Tie) -> list[tuple[int, ...]]:
        """All ranks that hold a copy; then, for each tensor rank, those that hold its part, where degrees are equal."""
        degrees = {stage: self.layout.plan.stages[stage].tensor for stage in t.apart}
        parts = [
            tuple(sorted({rank for s, degree in degrees.items() if at < degree for rank in self.layout.sharers(s, at)}))
            for at in range(max(degrees.values()))
        ]
        every = tuple(sorted({*chain(*parts)}))
        return [every, *(parts if len({*degrees.values()}) == 1 else ())]

    def _alike(self, t: Tie) -> bool:
        """Whether all copies are cut into the same parts, so that each part can be summed by itself."""
        every, *parts = self._groups(t)
        if len(parts) <= 1 or self.world.rank not in every:
            return bool(parts)
        dims = torch.zeros(self.world.size, device=self.world.device)
        for held, copies in self.held:
            if held is t:
                dim = split_dim(next(iter(copies.values())))
                dims[self.world.rank] = -1 if dim is None else dim + 1
        self.world.sum(dims, every, "sum of splits")
        return len({dims[rank].item() for rank in every}) == 1

    def sum_gradients(self) -> None:
        """Every copy's gradient becomes the sum over the copies of all stages, each of which is summed already."""
        for t, copies in self.held:
            if len(t.apart) > 1:
                self._sum(t, copies)

    def _sum(self, t: Tie, copies: Mapping[int, nn.Parameter]) -> None:
        every, *parts = self._groups(t)
        alike = self._cut_alike[t.name]
        group = next(part for part in parts if self.world.rank in part) if alike else every
        first = next(iter(copies.values()))
        shape = shard(first).shape if alike else first.shape
        # The last number counts the copies that have a gradient.
        flat = torch.zeros(shape.numel() + 1, dtype=first.dtype, device=first.device)
        total = flat[:-1].view(shape)
        for stage, copy in copies.items():
            settle(copy)
            if copy.grad is not None and self._speaks(stage, copy, alike):
                _window(copy, total, alike).add_(shard(copy.grad))
                flat[-1] += 1
        self.world.sum(flat, group, f"sum of the tied gradients of {t.name}")
        for copy in copies.values():
            if flat[-1] > 0 and copy not in self.aliases:
                give_gradient(copy, _window(copy, total, alike).contiguous())
            else:
                copy.grad = None

    def _speaks(self, stage: int, copy: Tensor, alike: bool) -> bool:
        """Whether this rank hands in its stage's copy: one rank for each part, one for what all tensor ranks hold."""
        tensor = self.layout.tensor_index(self.world.rank, stage)
        if self.world.rank != self.layout.sharers(stage, tensor)[0]:
            return False
        return alike or tensor == 0 or split_dim(copy) is not None


def _window(copy: Tensor, total: Tensor, alike: bool) -> Tensor:
    """The place of this rank's part in what is summed."""
    dim = split_dim(copy)
    if alike or dim is None or not is_sharded(copy):
        return total
    first, stop = span(copy)
    return total.narrow(dim, first, stop - first)
