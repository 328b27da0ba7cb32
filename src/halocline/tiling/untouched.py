"""What modules keep from one forward to the next besides their parameters, and leaving it as it was: a forward that is
run only to learn something (a recording, one without data) must leave no trace.

Followed are attributes of modules, registered or not, and of objects and classes of the user's own; dicts, lists, sets;
arrays and random generators; what functions (hooks among them) have closed over, and globals that they set. What is
torch's, Python's or ours is taken as it is.
"""

from __future__ import annotations

import dis
import io
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from halocline.tiling.randomness import kept_randomness

_FOREIGN = {*sys.stdlib_module_names, "torch", "numpy", "halocline"} - {"__main__"}
STATES = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState, numpy.ndarray)
"""What is changed as a whole."""


class Holder(NamedTuple):
    """Something that can be changed, and what it held."""

    name: str
    thing: Any
    """A dict (an object's attributes among them), list, deque, set, cell of a function, function that sets globals,
    class, object with slots, array, or random generator."""
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
    if isinstance(thing, STATES):
        return {0: _state(thing)}
    if isinstance(thing, set):
        return dict.fromkeys(thing)
    if isinstance(thing, FunctionType):
        names = thing.__globals__
        return {name: names[name] for name in _kept_by(thing) if name in names}
    if isinstance(thing, type):
        return {key: value for key, value in vars(thing).items() if _is_data(key, value)}
    if isinstance(thing, (list, deque)):
        return dict(enumerate(thing))
    return {name: getattr(thing, name) for name in _slots(type(thing)) if hasattr(thing, name)}


def _state(thing: Any) -> Any:
    if isinstance(thing, torch.Generator):
        return thing.get_state()
    if isinstance(thing, random.Random):
        return thing.getstate()
    if isinstance(thing, numpy.random.Generator):
        return thing.bit_generator.state
    return thing.get_state() if isinstance(thing, numpy.random.RandomState) else thing.copy()


def same_state(a: Any, b: Any) -> bool:
    """Whether two contents of something that is changed as a whole are equal."""
    return torch.equal(a, b) if isinstance(a, Tensor) else pickle.dumps(a) == pickle.dumps(b)


def _set_state(thing: Any, state: Any) -> None:
    if isinstance(thing, numpy.random.Generator):
        thing.bit_generator.state = state
    elif isinstance(thing, random.Random):
        thing.setstate(state)
    elif isinstance(thing, numpy.ndarray):
        if thing.tobytes() != state.tobytes():  # which may be read-only
            thing[...] = state
    else:
        thing.set_state(state)


@lru_cache(maxsize=4096)
def _set_by(code: CodeType) -> tuple[str, ...]:
    """The globals that a function sets."""
    return tuple(dict.fromkeys(i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"))


def _kept_by(function: FunctionType) -> tuple[str, ...]:
    """The globals that a function sets, and iterators among those that it uses."""
    names = function.__globals__
    return *_set_by(function.__code__), *(n for n in function.__code__.co_names if iterates(names.get(n)))


def _slots(kind: type) -> tuple[str, ...]:
    own = [cls for cls in kind.__mro__ if _of_the_user(cls)]
    return tuple(name for cls in own for name, value in vars(cls).items() if isinstance(value, MemberDescriptorType))


def _is_data(key: str, value: Any) -> bool:
    """Whether it is a value of a class, and no method of it."""
    return not (key.startswith("__") or key == "_abc_impl" or callable(value) or hasattr(type(value), "__get__"))


def holders(roots: Mapping[str, Any], hooks: bool = True) -> list[Holder]:
    """Everything changeable that is reached from `roots` (name -> a module, or anything), each once. Without `hooks`,
    not what only a module's hooks, classes and the functions it calls know, which may be the whole model."""
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
            named = [
                (f"{name}[{key!r}]" if isinstance(key, (str, int)) else name, v) for key, v in content_of(value).items()
            ]
        elif isinstance(value, nn.Module) or _own(value):
            if _slots(type(value)):
                found.append(Holder(name, value, content_of(value), value))
                named = [(f"{name}.{key}", v) for key, v in content_of(value).items()]
            thing = getattr(value, "__dict__", {})
            named += [(f"{name}.{key}", v) for key, v in _unfolded(thing) if hooks or not key.endswith("_hooks")]
            named += [(name, function) for function in _run_by(type(value), hooks)]
            named += [(f"{name}.{cls.__name__}", cls) for cls in type(value).__mro__ if _of_the_user(cls)]
        elif isinstance(value, type):
            if not _of_the_user(value):
                continue
            named = [(f"{name}.{key}", v) for key, v in content_of(value).items() if hooks]
        elif isinstance(value, FunctionType) and _kept_by(value) and _of_the_user(value):
            named = [(name, inner) for inner in _inside(value, hooks)]
        elif not isinstance(value, STATES):
            waiting.extend((name, inner) for inner in _inside(value, hooks))
            continue
        found.append(Holder(name, thing, content_of(thing), value))
        waiting.extend(named)
    return found


def _run_by(kind: type, called: bool) -> tuple[Any, ...]:
    """What runs when an object of a class is called; with `called`, methods that this calls by name included."""
    names, found = deque(["forward", "__call__"]), dict[str, FunctionType]()
    while names:
        name = names.popleft()
        function = getattr(kind, name, None)
        if name not in found and isinstance(function, FunctionType) and _of_the_user(function):
            found[name] = function
            names.extend(function.__code__.co_names if called else ())
    return tuple(found.values())


def _of_the_user(value: Any) -> bool:
    """Whether somebody wrote a class or function for this model."""
    return (getattr(value, "__module__", None) or "").partition(".")[0] not in _FOREIGN


def _unfolded(attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The attributes of an object; a module's parts by their own names."""
    for key, value in attributes.items():
        yield key, value
        if key == "_modules":
            yield from value.items()


def _own(value: Any) -> bool:
    """Whether it is an object of a class that somebody wrote for this model."""
    if isinstance(value, (Tensor, type, *STATES)):
        return False
    if not _of_the_user(type(value)):
        return isinstance(value, SimpleNamespace)
    return hasattr(value, "__dict__") or bool(_slots(type(value)))


def _inside(value: Any, called: bool) -> Iterable[Any]:
    """What something that cannot be changed itself leads to; with `called`, through functions and objects that a
    function finds among its globals, too."""
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
        kinds = (nn.Module, dict, list, set, deque, *STATES, *((FunctionType, type) if called else ()))
        kept = [v for v in used if isinstance(v, kinds) or (called and _own(v))]
        kept += [value.__dict__] if called and value.__dict__ else []
        return *(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *kept
    return ()


# -- iterators -----------------------------------------------------------------------------------------------------


def iterates(value: Any) -> bool:
    """Whether it is a generator or another iterator, which nobody can set back; one of the user's own is an object with
    attributes."""
    return isinstance(value, Iterator) and not isinstance(value, (nn.Module, io.IOBase)) and not _own(value)


class _Told(Iterator[Any]):
    """Stands in for an iterator."""

    def __init__(self, iterator: Iterator[Any], tell: Callable[[], None]) -> None:
        self.iterator, self.tell = iterator, tell

    def __next__(self) -> Any:
        self.tell()
        return next(self.iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)


@contextmanager
def told_of_iterators(kept: Iterable[Holder], tell: Callable[[str], None]) -> Iterator[None]:
    """Within it, `tell` is called with the name of each kept iterator that is about to be advanced."""
    put: list[tuple[Any, Any, _Told]] = []
    for name, thing, content, owner in kept:
        for key, value in content.items():
            if iterates(value) and not isinstance(thing, (set, *STATES)):
                where = f"{name}[{key!r}]" if owner is thing and isinstance(thing, (dict, list)) else f"{name}.{key}"
                put.append((thing, key, _Told(value, partial(tell, where))))
                _put(*put[-1])
    try:
        yield
    finally:
        for thing, key, told in put:
            if content_of(thing).get(key) is told:
                _put(thing, key, told.iterator)


def _refuse(name: str) -> None:
    raise ValueError(
        f"a forward advances an iterator that its module keeps ({name.partition('.')[2] or name}), and one that is run "
        f"without data to learn shapes could not set it back: keep a number or a list there, and count"
    )


@contextmanager
def untouched(modules: Iterable[nn.Module], own_tensors: bool = False) -> Iterator[None]:
    """Whatever modules set within is as before afterwards. With `own_tensors` they are given copies of their buffers
    and other tensors to write to: written back, their values would count as a change to autograd."""
    kept = holders({str(number): module for number, module in enumerate(modules)})
    copies: dict[int, Tensor] = {}
    for _, thing, content, _ in kept if own_tensors else ():
        for key, value in content.items():
            own = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
            if own and not isinstance(thing, (set, *STATES)):
                if id(value) not in copies:
                    copies[id(value)] = _copy(value)
                _put(thing, key, copies[id(value)])
    try:
        with told_of_iterators(kept, _refuse):
            yield
    finally:
        for _, thing, content, _ in kept:
            _restore(thing, content)


@contextmanager
def without_trace(modules: Iterable[nn.Module], device: torch.device) -> Iterator[None]:
    """For a forward with real data that is run only to learn something: no gradient, no change, no random number."""
    with torch.no_grad(), kept_randomness(device), untouched(modules, own_tensors=True):
        yield


def _copy(tensor: Tensor) -> Tensor:
    """A copy, of which who watches what a forward reads is not told."""
    with torch._C.DisableTorchFunction() if type(tensor) is Tensor else nullcontext():
        return tensor.detach().clone()


def _put(thing: Any, key: Any, value: Any) -> None:
    if isinstance(thing, CellType):
        thing.cell_contents = value
    elif isinstance(thing, (dict, list, deque)):
        thing[key] = value
    elif isinstance(thing, FunctionType):
        thing.__globals__[key] = value
    elif isinstance(thing, type):
        setattr(thing, key, value)
    else:
        object.__setattr__(thing, key, value)


def _restore(thing: Any, content: dict[Any, Any]) -> None:
    if isinstance(thing, STATES):
        _set_state(thing, content[0])
        return
    now = content_of(thing)
    if now.keys() == content.keys() and all(now[key] is value for key, value in content.items()):
        return  # what was not changed is not touched: others may use it
    if isinstance(thing, CellType):
        thing.cell_contents = content[0]
    elif isinstance(thing, (dict, set)):
        thing.clear()
        thing.update(content)
    elif isinstance(thing, (list, deque)):
        thing.clear()
        thing.extend(content.values())
    else:
        for key in now.keys() - content.keys():
            if isinstance(thing, FunctionType):
                del thing.__globals__[key]
            else:
                delattr(thing, key)
        for key, value in content.items():
            _put(thing, key, value)
