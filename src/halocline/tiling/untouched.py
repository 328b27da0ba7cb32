"""What modules keep from one forward to the next besides their parameters, and leaving it as it was: a forward that is
run only to learn something (a recording, one without data) must leave no trace.

Followed are attributes of modules, registered or not, and of objects of the user's own; dicts, lists, sets; and what
functions (hooks among them) have closed over. What is torch's, Python's or ours is taken as it is.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_FOREIGN = {*sys.stdlib_module_names, "torch", "numpy", "halocline"}


class Holder(NamedTuple):
    """Something that can be changed, and what it held."""

    name: str
    thing: Any
    """A dict (an object's attributes among them), list, deque, set, cell of a function, or random generator."""
    content: dict[Any, Any]
    owner: Any
    """Whose attributes they are, where it is an object's; else the thing."""


def content_of(thing: Any) -> dict[Any, Any]:
    """What it holds now, by key or place."""
    if isinstance(thing, dict):
        return dict(thing)
    if isinstance(thing, CellType):
        try:
            return {0: thing.cell_contents}
        except ValueError:  # a name that has no value yet
            return {}
    if isinstance(thing, torch.Generator):
        return {0: thing.clone_state()}
    if isinstance(thing, set):
        return dict.fromkeys(thing)
    return dict(enumerate(thing))


def holders(roots: Mapping[str, Any], hooks: bool = True) -> list[Holder]:
    """Everything changeable that is reached from `roots` (name -> a module, or anything), each once. Without `hooks`,
    not what only a module's hooks know, which may be the whole model."""
    found: list[Holder] = []
    seen: dict[int, Any] = {}  # with the things, so that no address is used twice
    waiting = deque((name, root) for name, root in roots.items())
    while waiting:
        name, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        thing = value
        named: list[tuple[str, Any]] = []
        if isinstance(value, (dict, list, set, deque, CellType)):
            named = [(f"{name}[{key!r}]" if _plain(key) else name, v) for key, v in content_of(value).items()]
        elif isinstance(value, nn.Module) or _own(value):
            thing = vars(value)
            own = [(f"{name}.{key}", v) for key, v in _unfolded(thing) if hooks or not key.endswith("_hooks")]
            named = [*own, (name, getattr(type(value), "forward", None))]
        elif not isinstance(value, torch.Generator):
            waiting.extend((name, inner) for inner in _inside(value))
            continue
        found.append(Holder(name, thing, content_of(thing), value))
        waiting.extend(named)
    return found


def _unfolded(attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The attributes of an object; a module's parts by their own names."""
    for key, value in attributes.items():
        yield key, value
        if key == "_modules":
            yield from value.items()


def _plain(key: Any) -> bool:
    return isinstance(key, (str, int))


def _own(value: Any) -> bool:
    """Whether it is an object of a class that somebody wrote for this model."""
    if isinstance(value, (Tensor, type)) or not hasattr(value, "__dict__"):
        return False
    return isinstance(value, SimpleNamespace) or type(value).__module__.partition(".")[0] not in _FOREIGN


def _inside(value: Any) -> Iterable[Any]:
    """What something that cannot be changed itself leads to."""
    if isinstance(value, (tuple, frozenset)):
        return value
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, FunctionType):
        names = value.__globals__
        if names.get("__name__", "").partition(".")[0] in _FOREIGN:
            return ()
        used = (names.get(name) for name in value.__code__.co_names)
        kept = (v for v in used if isinstance(v, (nn.Module, dict, list, set, deque)))
        return *(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *kept
    return ()


@contextmanager
def untouched(modules: Iterable[nn.Module], own_tensors: bool = False) -> Iterator[None]:
    """Whatever modules set within is as before afterwards. With `own_tensors` they are given copies of their buffers
    and other tensors to write to: written back, their values would count as a change to autograd."""
    kept = holders({str(number): module for number, module in enumerate(modules)})
    copies: dict[int, Tensor] = {}
    for _, thing, content, _ in kept if own_tensors else ():
        for key, value in content.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and not isinstance(thing, set):
                if id(value) not in copies:
                    copies[id(value)] = value.detach().clone()
                _put(thing, key, copies[id(value)])
    try:
        yield
    finally:
        for _, thing, content, _ in kept:
            _restore(thing, content)


def _put(thing: Any, key: Any, value: Any) -> None:
    if isinstance(thing, CellType):
        thing.cell_contents = value
    else:
        thing[key] = value


def _restore(thing: Any, content: dict[Any, Any]) -> None:
    if isinstance(thing, torch.Generator):
        thing.set_state(content[0].get_state())
        return
    now = content_of(thing)
    if now.keys() == content.keys() and all(now[key] is value for key, value in content.items()):
        return  # what was not changed is not touched: others may use it
    if isinstance(thing, CellType):
        thing.cell_contents = content[0]
        return
    thing.clear()
    if isinstance(thing, (dict, set)):
        thing.update(content)
    else:
        thing.extend(content.values())
