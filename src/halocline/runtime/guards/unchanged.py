"""What a forward may not change: parameters, buffers and attributes that are kept for the next one, where a stage does
not run each microbatch once and in turn. A recomputation would change them twice, copies of a stage each their own, and
what torch.utils.checkpoint runs again in a backward changes them out of turn.

What is made once and kept (a mask, a table) is none of that, nor is what each forward sets anew and none reads (the
last activation, a loss beside the loss). So attributes are looked at when they had their first values: in the second
forward. Knows modules; the executor says when to look.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import CellType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from halocline.runtime.guards.read_statistics import reading, same, tensors_in, unread
from halocline.runtime.guards.shared import Common
from halocline.runtime.layers import Layers, modules_in
from halocline.tiling.untouched import STATES, Holder, content_of, holders, same_state, told_of_iterators

TWICE = (
    "which would happen more than once where a stage recomputes or has a mirrored pipe or replicas, or another stage "
    "holds the same module: use recompute = false, pipes = 1 and replicas = 1, or "
)
LATER = (
    "and torch.utils.checkpoint runs it again in the backward, after forwards of other microbatches: leave the "
    "checkpoint out there, use one microbatch, or "
)
AHEAD = "and backwards of earlier microbatches need it as it was: use one microbatch, or "
APART = "apart"
LOOKS = 2


class FirstLooks:
    """Looks at the first forwards and backwards of stages, and at no others. Stages in `again` run a microbatch twice,
    have copies, or modules that other stages have, too; backwards of those in `later` follow other forwards; forwards
    of those in `ahead` come before backwards of other microbatches. Stages have something in `common`."""

    def __init__(self, again: set[int], later: set[int], ahead: set[int], common: Common) -> None:
        self._again, self._ahead, self._common = again, ahead, common
        self._steps: dict[int, list[int]] = {}
        """Those in which a stage's forward was looked at."""
        found = (TWICE, again), (LATER, later), (APART, {*common.stages})
        self._looks: dict[tuple[int, str], list[int]] = {(stage, why): [] for why, stages in found for stage in stages}
        """The sizes of the microbatches seen."""
        self._unread = later - again  # where copies have statistics of their own, none may be used at all
        self._read: dict[int, str] = {}
        """Stage -> a norm whose statistics its forward uses in training."""

    @contextmanager
    def over(
        self, stage: int, layers: Layers, samples: int, counted: Sequence[nn.Module] | None = None
    ) -> Iterator[None]:
        """For a forward of `samples`; or for a backward, in which the statistics of `counted` may change."""
        with ExitStack() as looks:
            if counted is None and stage in self._unread:
                self._unread.discard(stage)
                read = looks.enter_context(reading(layers))
                looks.callback(lambda: self._read.update((stage, name) for name in read()))
            elif counted and stage in self._read:
                looks.enter_context(updating_none(counted, self._read[stage]))
            for why in (APART, TWICE) if counted is None else (LATER,):
                seen = self._looks.get((stage, why))
                if seen is None or seen not in ([], [samples]):  # for another size, tables may have to be made anew
                    continue
                look = len(seen)
                seen.append(samples)
                if len(seen) == LOOKS:
                    del self._looks[stage, why]
                if why == APART:
                    looks.enter_context(kept_apart(layers, self._common, self._common.stages[stage], look))
                    continue
                # Recomputations and copies know about statistics.
                norms = [m for _, m in modules_in(layers) if isinstance(m, _NormBase)]
                looks.enter_context(unchanged(layers, norms if counted is None else counted, look, why))
            yield

    @contextmanager
    def writing(self, stage: int, layers: Layers, step: int) -> Iterator[None]:
        """For a forward, which may not write to parameters. The first of two steps is looked at: an average of
        parameters often begins as what it averages, and stays the same until these change."""
        steps = self._steps.setdefault(stage, [])
        if len(steps) == LOOKS or step in steps:
            yield
            return
        steps.append(step)
        kept: AbstractContextManager[None] = nullcontext()
        if stage in self._again | self._ahead:
            kept = unwritten(layers, TWICE if stage in self._again else AHEAD)
        with self._common.borrowing_nothing(layers), kept:
            yield


@contextmanager
def updating_none(norms: Sequence[Any], name: str) -> Iterator[None]:
    """A backward that updates no statistics, as a forward uses those of `name`."""
    before = [norm.num_batches_tracked.clone() for norm in norms]
    yield
    if any(not torch.equal(norm.num_batches_tracked, was) for norm, was in zip(norms, before)):
        raise ValueError(
            f"a forward in training uses the running statistics of {name}, and torch.utils.checkpoint updates "
            f"statistics in backwards, after forwards of other microbatches: leave the checkpoint out there, use one "
            f"microbatch, or set that module to eval()"
        )


@contextmanager
def unwritten(layers: Layers, why: str) -> Iterator[None]:
    """A forward that does not write to parameters; ahead of backwards it may where autograd notices."""
    before = _parameters(layers)
    yield
    for name, (version, values) in _parameters(layers).items():
        begun, were = before.get(name, (version, values))
        noticed = version != begun
        if (noticed or were != values) if why == TWICE else (were != values and not noticed):
            raise ValueError(f"a forward changes its layer's parameter {name}, {why}change it between steps")


def _parameters(layers: Layers) -> dict[str, tuple[int, Any]]:
    """By name a parameter's version, and what tells that it has other values: a copy could be too large."""
    found = {}
    for name, layer in layers:
        for key, parameter in layer.named_parameters():
            if type(parameter) is nn.Parameter and parameter.dtype.is_floating_point:
                data = parameter.detach()
                values = data.data_ptr(), repr((data.sum().item(), data.norm().item()))
                found[f"{name}.{key}"] = _version(parameter), values
    return found


@contextmanager
def unchanged(layers: Layers, allowed: Sequence[nn.Module], look: int, why: str = TWICE) -> Iterator[None]:
    """A forward, or a backward that may run one again, in which only the buffers of `allowed` modules may change;
    `look` counts those watched before."""
    buffers = {name: buffer.clone() for name, buffer in _buffers(layers, allowed).items()}
    kept = _attributes(layers) if look else []
    # Compiled code would not say what it reads. Where the compiler is not loaded there is none.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    advanced: list[str] = []
    iterators = told_of_iterators([holder for holder, _ in kept], advanced.append)
    with iterators, _Used(kept) as reads, eager, unread(layers if why == TWICE else []):
        yield
    if not reads.forwards:
        return
    for name in advanced:
        raise ValueError(f"a forward advances its layer's iterator {name}, {why}keep none there")
    for name, buffer in _buffers(layers, allowed).items():
        was = buffers.get(name)
        if was is not None and was.shape == buffer.shape and not same(was, buffer):
            raise ValueError(f"a forward changes its layer's buffer {name}, {why}set that module to eval()")
    for holder, versions in kept:
        name = _changed(holder, versions, reads)
        if name:
            raise ValueError(f"a forward changes its layer's attribute {name}, {why}keep nothing there")


@contextmanager
def kept_apart(layers: Layers, common: Common, names: str, look: int) -> Iterator[None]:
    """A forward that changes nothing which another stage's layers lead to, once tables are made."""
    kept = [(h, _versions(h.content)) for h in holders(dict(layers), hooks=False)] if look else []
    with _Used(kept) as reads:
        yield
    for holder, versions in kept:
        shared, now = id(holder.thing) in common.things, content_of(holder.thing)
        told = [k for k, v in holder.content.items() if id(v) in common.things and k in versions]
        name = next((f"{holder.name}.{k}" for k in told if _version(holder.content[k]) != versions[k]), "")
        if shared and isinstance(holder.owner, (nn.Module, *STATES)):
            name = name or _changed(holder, versions, reads)
        elif shared and (
            now.keys() != holder.content.keys() or any(not _kept(holder.content[k], v) for k, v in now.items())
        ):
            name = name or holder.name
        if name:
            raise ValueError(
                f"a forward changes {name}, which layers {names} of several stages have in common, and each stage has "
                f"its own: pass it on in a tuple, put those layers into one stage, or make it two"
            )


def _buffers(layers: Layers, allowed: Sequence[nn.Module]) -> dict[str, Tensor]:
    every = [(name, module) for name, module in modules_in(layers) if module not in allowed]
    return {f"{name}.{key}": b for name, module in every for key, b in module.named_buffers(recurse=False)}


# -- attributes ----------------------------------------------------------------------------------------------------

_BY_KEY = (dict, list, deque, set, CellType)
Kept = list[tuple[Holder, dict[Any, int]]]
"""With the versions of the tensors."""


def _attributes(layers: Layers) -> Kept:
    """What may not change, but for what is a parameter, a buffer, or a part of the layers."""
    apart = {id(d) for _, m in modules_in(layers) for d in (m._parameters, m._buffers, m._modules)}
    return [(holder, _versions(holder.content)) for holder in holders(dict(layers)) if id(holder.thing) not in apart]


def _versions(content: dict[Any, Any]) -> dict[Any, int]:
    return {key: _version(value) for key, value in content.items() if isinstance(value, Tensor)}


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class _Used(TorchFunctionMode):
    """Notes which tensors operators are given, which attributes modules are asked for while they have the values that
    they had at first, and whether any module is run."""

    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self.tensors: set[int] = set()
        self.attributes: set[tuple[int, str]] = set()
        self.forwards = False
        self.first = {id(h.owner): h.content for h, _ in kept if isinstance(h.owner, nn.Module)}

    def __enter__(self) -> _Used:
        usual = nn.Module.__getattribute__

        def get(module: Any, name: str) -> Any:
            value = usual(module, name)
            self.forwards |= name == "forward"
            if name in self.first.get(id(module), ()) and self.first[id(module)][name] is value:
                self.attributes.add((id(module), name))
            return value

        self.usual = nn.Module.__dict__.get("__getattribute__")
        nn.Module.__getattribute__ = get  # type: ignore[method-assign,assignment]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        del nn.Module.__getattribute__
        if self.usual is not None:  # somebody else's
            nn.Module.__getattribute__ = self.usual  # type: ignore[method-assign]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tensors.update(map(id, tensors_in((args, kwargs))))
        return func(*args, **(kwargs or {}))


def _changed(holder: Holder, versions: dict[Any, int], reads: _Used) -> str:
    """The name of what has changed in a way that the next forward could notice; empty if nothing has."""
    now = content_of(holder.thing)
    if isinstance(holder.thing, STATES):
        return "" if same_state(now[0], holder.content[0]) else holder.name
    if isinstance(holder.thing, (list, deque, CellType)) and len(now) != len(holder.content):
        return holder.name
    module = isinstance(holder.owner, nn.Module)
    for key, was in holder.content.items():
        inside = holder.owner is holder.thing and isinstance(holder.thing, _BY_KEY)
        name = f"{holder.name}[{key!r}]" if inside else f"{holder.name}.{key}"
        value = now.get(key)
        if value is was:
            if isinstance(was, Tensor) and _version(was) != versions[key]:
                return name
            continue
        tensors = tensors_in(was)
        if tensors:
            if any(id(t) in reads.tensors for t in tensors):
                return name
        elif was is not None and not _equal(was, value) and (not module or (id(holder.owner), key) in reads.attributes):
            return name
    return ""


def _kept(was: Any, value: Any) -> bool:
    return value is was or (not isinstance(was, Tensor) and _equal(was, value))


def _equal(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # objects of anyone's, who may compare as they like
        return False
