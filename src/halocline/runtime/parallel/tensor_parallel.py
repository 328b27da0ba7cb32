"""Tensor parallelism: the ranks of a tensor group share a layer's matrices, with DTensor and parallelize_module.

A module's class says in `split` how its children may be divided (plain words; the models' own file explains them). Each
tensor rank holds all of what is not in `split` and computes it alike: exact, but nothing is saved. Between modules that
are split, activations are whole on every tensor rank, and so are their gradients.

    x -- column --> some features (heads) -- ... -- row --> partial sums -- all-reduce --> x'
    words -- table, some rows --> partial sums -- all-reduce --> x          x' -- logits of some words --> loss

Sequence parallelism: between those modules each rank takes some of the tokens, so that norms, residuals and what they
keep for the backward are divided, too.

    x, some tokens -- norm --> all-gather --> column ... row --> reduce-scatter --> some tokens, added to x

A layer can do this if its class declares which of its norms see each token alone. Layers hand each other their tokens
as they are; what cannot take part, and the end of a stage, gets them all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from halocline.runtime.parallel.shard import span
from halocline.tiling.tensor import TileTensor

COLUMN, ROW, VOCABULARY, HEADS, SEQUENCE = "column", "row", "vocabulary", "heads", "sequence"
"""The words of `split`: output features, input features, rows of a table or logits, a buffer's heads, and a norm that
sees each token alone."""
TOKENS = 1
"""The dim of a (samples, tokens, features) tensor that is cut."""


def declared(layer: nn.Module) -> dict[str, str]:
    """Path of a module (or buffer) inside a layer -> the word that says how it is split."""
    found = {}
    for path, module in layer.named_modules():
        for child, word in getattr(type(module), "split", {}).items():
            if getattr(module, child, None) is not None:
                found[f"{path}.{child}" if path else child] = word
    return found


def is_sequential(layer: nn.Module) -> bool:
    """Whether a layer that was split works on some of the tokens only."""
    return getattr(layer, "_some_tokens", False)


def require_divisible(name: str, layer: nn.Module, degree: int) -> None:
    """Refuse, with the arithmetic, a layer that does not divide among `degree` tensor ranks. It may be without data."""
    for path, word in declared(layer).items():
        owner, _, child = path.rpartition(".")
        holder = layer.get_submodule(owner)
        if word == HEADS:
            _divide(f"{name}.{path}", holder.get_buffer(child).shape[0], "heads", degree)
        elif word != SEQUENCE:
            _style(f"{name}.{path}", word, getattr(holder, child), degree)
        if word == ROW and hasattr(holder, "head_features"):
            heads = getattr(holder, child).in_features // holder.head_features
            _divide(f"{name}.{owner}" if owner else name, heads, "heads", degree)


def split_layer(name: str, layer: nn.Module, mesh: DeviceMesh, *, last: bool, lanes: int, sequence: bool) -> bool:
    """Divide a layer, whole on every tensor rank, among them. Returns whether there was anything to divide.

    Of the `last` layer of a model the logits stay divided, for a loss that can take them so. With `sequence`, a layer
    that declares how works on some of the tokens; a layer after it that does not is given them all.
    """
    require_divisible(name, layer, mesh.size())
    plan: dict[str, ParallelStyle] = {}
    words = declared(layer)
    sequence = sequence and SEQUENCE in words.values()
    if sequence:
        layer._some_tokens = True  # type: ignore[assignment]
        _cut_tokens(name, layer, mesh)
        for owner in {path.rpartition(".")[0] for path, word in words.items() if word in (COLUMN, ROW)}:
            _gather_tokens(layer.get_submodule(owner), mesh)
    else:
        layer.register_forward_pre_hook(lambda layer, args: gathered(args))
    for path, word in words.items():
        if word == SEQUENCE:
            if sequence:
                plan[path] = SequenceParallel(sequence_dim=TOKENS, use_local_output=True)
            continue
        owner, _, child = path.rpartition(".")
        holder = layer.get_submodule(owner)
        if word == HEADS:
            mine = holder.get_buffer(child).chunk(mesh.size())[mesh.get_local_rank()].clone()
            holder.register_buffer(child, mine, persistent=child not in holder._non_persistent_buffers_set)
            holder._divided = {**getattr(holder, "_divided", {}), child: mesh}  # type: ignore[assignment]
            continue
        style = _style(f"{name}.{path}", word, getattr(holder, child), mesh.size(), last and lanes == 1)
        if sequence and isinstance(style, RowwiseParallel):
            style = RowwiseParallel(output_layouts=Shard(TOKENS))
        plan[path] = style
    for path in plan if lanes > 1 else ():
        layer.get_submodule(path).register_forward_pre_hook(partial(_out_of_lane, lanes))  # before DTensor's own
    if plan:
        parallelize_module(layer, mesh, plan, src_data_rank=None)
    for path in plan if lanes > 1 else ():
        layer.get_submodule(path).register_forward_hook(partial(_into_lane, lanes))  # after DTensor's own
    return bool(plan)


def _style(where: str, word: str, module: nn.Module, degree: int, logits: bool = False) -> ParallelStyle:
    if isinstance(module, nn.Linear):
        if word == COLUMN:
            _divide(where, module.out_features, "output features", degree)
            return ColwiseParallel()
        if word == ROW:
            _divide(where, module.in_features, "input features", degree)
            return RowwiseParallel()
        if word == VOCABULARY:
            _enough(where, module.out_features, degree)
            if logits:
                return ColwiseParallel(use_local_output=False)
            return ColwiseParallel(output_layouts=Replicate())
    if isinstance(module, nn.Embedding):
        if word == COLUMN:
            _divide(where, module.embedding_dim, "features", degree)
            return ColwiseParallel()
        if word == VOCABULARY:
            _enough(where, module.num_embeddings, degree)
            return TableParallel(where)
    raise ValueError(
        f"{where} is a {type(module).__name__} and its split says {word!r}: a Linear may be split by {COLUMN}, {ROW} "
        f"or {VOCABULARY}, an Embedding by {COLUMN} or {VOCABULARY}, a buffer by {HEADS}"
    )


def _divide(where: str, count: int, what: str, degree: int) -> None:
    if count % degree:
        fits = max(d for d in range(1, degree + 1) if count % d == 0)
        raise ValueError(
            f"{where} has {count} {what}, which do not divide among tensor = {degree} ranks ({count} % {degree} = "
            f"{count % degree}): use tensor = {fits}, or a model whose {what} divide"
        )


def _enough(where: str, words: int, degree: int) -> None:
    """Words need not divide: the last ranks have fewer. But none may be left without any."""
    part = -(-words // degree)
    if part * (degree - 1) >= words:
        raise ValueError(
            f"{where} has {words} words, which leave the last of tensor = {degree} ranks none ({part} each): use a "
            f"smaller tensor degree"
        )


class TableParallel(ParallelStyle):
    """An embedding of which each tensor rank holds some rows: it looks up the words it has, and the sum over ranks has
    all. Its gradient is made of those rows alone, where DTensor's own lookup makes one of the whole table."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Embedding)
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(module, option):
                raise ValueError(
                    f"{self.where} has {option} = {getattr(module, option)}, which needs the whole table on one rank: "
                    f"leave it out, or use tensor = 1"
                )
        weight = nn.Parameter(
            distribute_tensor(module.weight, device_mesh, [Shard(0)], src_data_rank=None),
            requires_grad=module.weight.requires_grad,
        )
        module.register_parameter("weight", weight)
        first, stop = span(weight)
        padding = module.padding_idx
        mine = padding - first if padding is not None and first <= padding < stop else None

        def look_up(words: Tensor) -> Tensor:
            here = own_words(words, first, stop, module.num_embeddings)
            table = module.weight.to_local()  # type: ignore[attr-defined]
            rows = F.embedding(torch.where(here, words - first, 0), table, mine)
            part = _spread(rows.masked_fill(~here.unsqueeze(-1), 0), device_mesh, Partial())
            return part.redistribute(placements=[Replicate()]).to_local()  # of its gradient each part takes all

        module.forward = look_up  # type: ignore[method-assign,assignment]
        return module


def own_words(words: Tensor, first: int, stop: int, count: int) -> Tensor:
    """Which words are of the rows `first` to `stop` of a table of `count`. Words that no table has belong to the ends,
    where the lookup refuses them as on one device."""
    here = torch.ones_like(words, dtype=torch.bool)
    if first:
        here &= words >= first
    if stop < count:
        here &= words < stop
    return here


# -- tokens -------------------------------------------------------------------------------------------------------


def _cut_tokens(name: str, layer: nn.Module, mesh: DeviceMesh) -> None:
    """Let a layer work on this rank's tokens: they are cut from what comes whole, and stay cut when they leave."""

    def enter(module: nn.Module, args: tuple[Any, ...]) -> Any:
        return _each(args, lambda t: _of_this_rank(name, t, mesh).to_local() if _has_tokens(t) else t)

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return _each(output, lambda t: _spread(t, mesh, Shard(TOKENS)) if _has_tokens(t) else t)

    layer.register_forward_pre_hook(enter)
    layer.register_forward_hook(leave)


def _gather_tokens(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let a module inside such a layer see all tokens; it gets them as DTensors, whose gradients are then scattered."""

    def enter(module: nn.Module, args: tuple[Any, ...]) -> Any:
        met: dict[int, Tensor] = {}  # a sequence that attends to itself comes twice

        def whole(tensor: Tensor) -> Tensor:
            if not _has_tokens(tensor):
                return tensor
            if id(tensor) not in met:
                met[id(tensor)] = _spread(tensor, mesh, Shard(TOKENS)).redistribute(placements=[Replicate()])
            return met[id(tensor)]

        return _each(args, whole)

    module.register_forward_pre_hook(enter)


def _has_tokens(tensor: Tensor) -> bool:
    """Whether it is a (samples, tokens, features) tensor."""
    return tensor.ndim == 3 and tensor.is_floating_point()


def _of_this_rank(name: str, tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    tokens, degree = tensor.shape[TOKENS], mesh.size()
    if tokens % degree:
        raise ValueError(
            f"layer {name}: {tokens} tokens do not divide among tensor = {degree} ranks ({tokens} % {degree} = "
            f"{tokens % degree}): use a sequence of {tokens - tokens % degree or degree}, or no sequence parallelism"
        )
    return _spread(tensor, mesh, Replicate()).redistribute(placements=[Shard(TOKENS)])


def _spread(tensor: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [placement], run_check=False)


# -- lanes: DTensor sees a lane's samples as a plain tensor; a parameter gets the part of the gradient that its lane
# finds, and of what all lanes compute alike an equal share --------------------------------------------------------


class _Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.factor, None


def _out_of_lane(lanes: int, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    tile = args[0]
    module._lane = tile.spec if isinstance(tile, TileTensor) else None  # type: ignore[assignment]
    if isinstance(tile, TileTensor):
        return (tile.local, *args[1:])
    return (_Weighed.apply(tile, lanes), *args[1:]) if tile.requires_grad else args


def _into_lane(lanes: int, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    spec: Any = module._lane
    if spec is None:
        return _Weighed.apply(settled(output), 1 / lanes)
    return TileTensor.wrap(settled(output), spec.with_dims((-output.ndim,)))


# -- what leaves a layer -------------------------------------------------------------------------------------------


class _Waited(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.wait()  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def settled(value: Any) -> Any:
    """The same with every tensor arrived: DTensor hands on sums that are still under way."""
    return _each(value, lambda t: _Waited.apply(t) if isinstance(t, AsyncCollectiveTensor) else t)


def gathered(value: Any) -> Any:
    """The same with every tensor whole: logits that were divided become all words' on every tensor rank."""

    def whole(tensor: Tensor) -> Tensor:
        if isinstance(tensor, DTensor):
            return tensor.redistribute(placements=[Replicate()]).to_local()
        return settled(tensor)

    return _each(value, whole)


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with every tensor changed."""
    if isinstance(value, (tuple, list)):
        return tuple(_each(v, change) for v in value)
    return change(value) if isinstance(value, Tensor) else value
