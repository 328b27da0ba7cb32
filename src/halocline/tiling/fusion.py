"""Fused halos: one exchange, wide enough for several layers, in place of one per layer.

A group of modules is recorded once per input size: which operators run, and how far each one reaches. The boxes that
the group's outputs own are then followed backward through that record to the boxes that its inputs must hold:

    own      [4 . . 8)      output of the second 3x3 convolution
    needs  [3 . . . . 9)    its input: the first convolution computes 2 pixels more than it owns, and exchanges nothing
    needs [2 . . . . . 10)  the group's input: fetched in one exchange

The record decides only how much is fetched ahead. An operator that finds too little in the margin fetches it itself,
so a record that is wrong or missing (control flow that depends on the data, say) costs messages, never exactness.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from halocline.tiling.boxes import Box, Cuts, Reach, clip, contains, is_empty
from halocline.tiling.exchanger import Exchanger, NoCommunication
from halocline.tiling.geometry import needed
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, find_tiles
from halocline.tiling.untouched import without_trace

Boxes = tuple[Box, ...]
Module = TypeVar("Module", bound=nn.Module)

# ------------------------------------------------------------------------------------------------------- the user's


def fuse(module: Module) -> Module:
    """Make `module` (a block, say) fetch all that it will need from other tiles in one exchange, from now on.

    Returns the module. Under activation checkpointing use this rather than `fused`: a recomputation in the backward
    then fetches what the forward did.
    """
    module.register_forward_pre_hook(_on_fused_entry, with_kwargs=True)
    return module


@contextlib.contextmanager
def fused(layers: int | None = None) -> Iterator[None]:
    """Inside it, every nn.Sequential runs its children in groups of `layers` (all of them for None).

    Each group fetches what its layers need from other tiles in one exchange before its first layer. Nested
    Sequentials find their margins there already.
    """
    if layers is not None and layers < 1:
        raise ValueError(f"fused({layers}) cannot group layers; give the number of layers per exchange, 1 or more")
    groups: dict[nn.Module, list[nn.Module]] = {}

    def on_entry(module: nn.Module, args: Any) -> Any:
        if _CURRENT.get() is not groups:  # another thread's, or a `fused` inside this one
            return None
        entered = None
        if module in groups:
            entered = _prefetch(groups[module], args)
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            children = list(module)
            step = layers or max(1, len(children))
            for i in range(0, len(children), step):
                groups[children[i]] = children[i : i + step]
        return entered

    handle = register_module_forward_pre_hook(on_entry)
    token = _CURRENT.set(groups)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        handle.remove()


_CURRENT: ContextVar[dict[nn.Module, list[nn.Module]] | None] = ContextVar("fused groups", default=None)


def run_fused(modules: Sequence[nn.Module], *inputs: Any) -> Any:
    """What the modules give one after the other, the first on `inputs`, as one group: one exchange per tiled input."""
    if not modules:
        raise ValueError("run_fused was given no modules; pass at least one")
    out = modules[0](*_prefetch(modules, inputs))
    for module in modules[1:]:
        out = module(out)
    return out


def prefetched(modules: Sequence[nn.Module], value: Any) -> Any:
    """`value`, a tensor or a tuple of them, holding what the modules need when they run on it one after the other.

    For those who run the modules themselves; `run_fused` does both.
    """
    return _prefetch(modules, (value,))[0]


def _on_fused_entry(module: nn.Module, args: Any, kwargs: Any) -> Any:
    if not kwargs:
        return _prefetch([module], args), kwargs
    names = tuple(kwargs)

    def call(*values: Any) -> Any:
        return module(*values[: len(args)], **dict(zip(names, values[len(args) :])))

    values = _prefetch([module], (*args, *kwargs.values()), call)
    return values[: len(args)], dict(zip(names, values[len(args) :]))


# ------------------------------------------------------------------------------------------------- fetching ahead

# What each group fetches, by its first module: found once per group, mode and specs of the inputs.
_HALOS: WeakKeyDictionary[nn.Module, dict[Any, tuple[Boxes, ...] | None]] = WeakKeyDictionary()


def _prefetch(modules: Sequence[nn.Module], args: tuple[Any, ...], call: Callable[..., Any] | None = None) -> Any:
    """The arguments of a group's first module, holding the margins that the group needs."""
    tiles = find_tiles(args)
    if not tiles or any(isinstance(t, _Recorded) for t in tiles):
        return args
    halos = _HALOS.setdefault(modules[0], {})
    key = (tuple(t.spec for t in tiles), *((id(m), m.training) for m in modules))
    if key not in halos:
        halos[key] = _agreed(_halos_of(modules, args, call), tiles[0])
    found = halos[key]
    if found is None:
        return args
    ahead = {id(t): _hold(t, have) for t, have in zip(tiles, found)}
    return _replace(args, ahead)


def _hold(tile: TileTensor, have: Boxes) -> TileTensor:
    if all(contains(held, box) for held, box in zip(tile.spec.have, have)):
        return tile
    return tile.fetched(have)


def _agreed(halos: tuple[Boxes, ...] | None, tile: TileTensor) -> tuple[Boxes, ...] | None:
    """`halos`, or nothing where the ranks do not agree (a recording that failed on one rank only)."""
    digest = torch.tensor([zlib.crc32(repr(halos).encode())], device=tile.local.device)
    digests = tile.spec.exchanger.all_gather(digest)
    return halos if bool((digests == digest).all()) else None


def _replace(value: Any, new: dict[int, TileTensor]) -> Any:
    """`value` with other tiles in place of those that `new` names by identity."""
    if isinstance(value, TileTensor):
        return new[id(value)]
    if not find_tiles((value,)):
        return value
    if isinstance(value, dict):
        return type(value)((k, _replace(v, new)) for k, v in value.items())
    items = [_replace(v, new) for v in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


# ------------------------------------------------------------------------------------------------------ the record


@dataclass(frozen=True)
class _TileNode:
    """A tiled tensor of the record."""

    number: int
    cuts: tuple[Cuts, ...]
    own: Boxes


@dataclass(frozen=True)
class _WindowUse:
    """One use of a window inside a call: `out` reads `source` by `reaches`."""

    source: tuple[Cuts, ...]
    size: tuple[int, ...]
    reaches: tuple[Reach, ...]
    out: tuple[Cuts, ...]
    own: Boxes


@dataclass(frozen=True)
class _Call:
    inputs: tuple[_TileNode, ...]
    outputs: tuple[_TileNode, ...]
    reached: tuple[_WindowUse, ...]


@dataclass(eq=False)
class _Tape:
    nodes: int = 0
    reached: list[_WindowUse] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)

    def watch(self, spec: TileSpec, reaches: tuple[Reach, ...], out: TileSpec) -> None:
        self.reached.append(_WindowUse(spec.cuts, spec.size, reaches, out.cuts, out.own))

    def add(self, tile: TileTensor) -> _TileNode:
        """The node of a tile, which from now on records what is done with it."""
        if not isinstance(tile, _Recorded):
            self.nodes += 1
            tile.__class__ = _Recorded
            assert isinstance(tile, _Recorded)
            tile.node, tile.tape = _TileNode(self.nodes, tile.spec.cuts, tile.spec.own), self
        return tile.node


class _Recorded(TileTensor):
    """A tile that notes every operator it goes through. A class of its own, so that other tiles pay nothing for it."""

    node: _TileNode
    tape: _Tape

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [t for t in find_tiles((args, kwargs)) if isinstance(t, _Recorded)]
        tape, counter = inputs[0].tape, inputs[0].spec.exchanger.counter
        seen, exchanges = len(tape.reached), counter.exchanges
        result = super().__torch_function__(func, types, args, kwargs)
        reached = tuple(tape.reached[seen:])
        given = tuple(t.node for t in inputs)
        outputs = tuple(tape.add(t) for t in find_tiles((result,)))
        # An operator that moves pixels otherwise than by windows takes owned pixels only: nothing to hold for it.
        if outputs and (reached or counter.exchanges == exchanges):
            tape.calls.append(_Call(given, outputs, reached))
        return result


_RECORDERS: WeakKeyDictionary[Exchanger, NoCommunication] = WeakKeyDictionary()


def _halos_of(
    modules: Sequence[nn.Module], args: tuple[Any, ...], call: Callable[..., Any] | None
) -> tuple[Boxes, ...] | None:
    """By tiled input of the group the boxes it must hold, by rank; None where the group cannot be recorded.

    The group runs once without communication and without a trace in what it keeps or in the random numbers; what
    it computes is thrown away.
    """
    tiles = find_tiles(args)
    exchanger = tiles[0].spec.exchanger
    silent = _RECORDERS.setdefault(exchanger, NoCommunication(exchanger.rank, exchanger.size))
    tape = _Tape()
    silent.watcher = tape.watch
    try:
        with without_trace(modules, tiles[0].device):
            blank: dict[int, TileTensor] = {}
            for tile in tiles:
                spec = tile.spec
                twin = TileSpec(spec.cuts, silent, spec.dims, spec.ranks, spec.have)
                blank[id(tile)] = TileTensor.wrap(tile.local.clone(), twin)
            nodes = [tape.add(blank[id(tile)]) for tile in tiles]
            inputs = _replace(args, blank)
            out = call(*inputs) if call is not None else modules[0](*inputs)
            for module in modules[1:]:
                out = module(out)
    except Exception:  # whatever is wrong with the group, running it for real says it better
        return None
    finally:
        silent.watcher = None
    demand = _follow_back(tape.calls)
    return tuple(_hulls(node.own, demand.get(node.number, node.own)) for node in nodes)


def _follow_back(calls: Sequence[_Call]) -> dict[int, Boxes]:
    """By node the boxes it must hold so that no operator of the record lacks anything, by rank."""
    demand: dict[int, Boxes] = {}
    for call in reversed(calls):
        # Within a call, tensors cut alike stand for each other: it is at most one operator and its trimmings.
        levels: dict[tuple[Cuts, ...], Boxes] = {}
        for node in call.outputs:
            boxes = _hulls(node.own, demand.get(node.number, node.own))
            levels[node.cuts] = _hulls(levels.get(node.cuts, boxes), boxes)
        for use in reversed(call.reached):
            # What a rank owns of a result it always computes, whether or not the outputs need all of it.
            boxes = _hulls(use.own, levels.get(use.out, use.own))
            boxes = tuple(clip(needed(use.reaches, box), use.size) for box in boxes)
            levels[use.source] = _hulls(levels.get(use.source, boxes), boxes)
        for node in call.inputs:
            if node.cuts in levels:
                demand[node.number] = _hulls(demand.get(node.number, node.own), levels[node.cuts])
    return demand


def _hulls(a: Boxes, b: Boxes) -> Boxes:
    """By rank the smallest box around two. One that is empty counts for nothing; of two such the first remains."""
    return tuple(
        x if is_empty(y) else y if is_empty(x) else tuple((min(p[0], q[0]), max(p[1], q[1])) for p, q in zip(x, y))
        for x, y in zip(a, b)
    )
