"""How the keywords of a call become places: a rule sees its arguments as torch's own signature names and orders them.

Torch takes most arguments by place or by name, some by numpy's names (axis, keepdims, x1); a rule need not know which
was used. Calls without keywords do not come here. Knows nothing of tiles; torch itself has refused unknown keywords.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from inspect import Parameter, Signature, signature
from types import FunctionType
from typing import Any

import torch

# What torch takes in place of its own names (numpy_compatibility_arg_names of its argument parser), and its own name
# of what its schemas call self.
_OTHER_NAMES = {"axis": "dim", "keepdims": "keepdim", "x2": "other"}
_OF_INPUT = ("input", "self", "x", "a", "x1")


@dataclass(frozen=True)
class _Argument:
    name: str
    default: Any
    """`Parameter.empty` if it must be given."""
    by_name_only: bool

    def called(self, name: str) -> bool:
        return self.name in (name, _OTHER_NAMES.get(name)) or (self.name == "input" and name in _OF_INPUT)


_Form = tuple[_Argument, ...]


@cache
def _forms(function: Any) -> tuple[_Form, ...]:
    """The ways in which torch lets a function be called; none if that is not known."""
    if isinstance(function, FunctionType):
        return _form_of(function)
    if not isinstance(getattr(function, "__name__", None), str):
        return ()
    forms = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{function.__name__}"):
        # Others are those of scripts, for numbers and lists.
        if schema.overload_name.startswith("prim_") or not any("Tensor" in str(a.type) for a in schema.arguments):
            continue
        forms.append(
            tuple(
                _Argument(
                    "input" if a.name == "self" else a.name,
                    a.default_value if a.has_default_value() else Parameter.empty,
                    a.kwarg_only or a.name == "memory_format",  # whatever scripts do
                )
                for a in schema.arguments
                if not a.is_out
            )
        )
    named = {a.name for form in forms for a in form if a.by_name_only}
    return tuple(tuple(_Argument(a.name, a.default, a.name in named) for a in form) for form in forms)


def _form_of(function: Any) -> tuple[_Form, ...]:
    """That of a function written in Python, unless it takes any arguments and hands them on."""
    try:
        parameters = signature(function).parameters.values()
    except ValueError:
        return ()
    if any(p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for p in parameters):
        return ()
    return (tuple(_Argument(p.name, p.default, p.kind is Parameter.KEYWORD_ONLY) for p in parameters),)


@dataclass(frozen=True)
class _Order:
    """How a call with some keywords becomes the call of a rule."""

    places: tuple[tuple[str | None, Any], ...]
    """What follows the arguments given by place: each a keyword's value, or (None, a default)."""
    names: tuple[tuple[str, str], ...]
    """What stays a keyword: (torch's name, the name given)."""


def _taken(form: _Form, given: int, keywords: Iterable[str]) -> dict[str, str] | None:
    """The keyword given for each argument; None if a call of `given` places and these keywords is not of this form."""
    if given > sum(not a.by_name_only for a in form):
        return None
    taken: dict[str, str] = {}
    for keyword in keywords:
        found = next((a for a in form[given:] if a.called(keyword)), None)
        if found is None or found.name in taken:
            return None
        taken[found.name] = keyword
    missing = (a for a in form[given:] if a.name not in taken)
    return taken if all(a.default is not Parameter.empty for a in missing) else None


def _accepts(form: Signature, places: int, names: Iterable[str]) -> bool:
    try:
        form.bind(*(None,) * places, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


@lru_cache(maxsize=4096)
def _order(function: Any, rule: Callable[..., Any], given: int, keywords: tuple[str, ...]) -> _Order:
    as_given = _Order((), tuple((k, k) for k in keywords))
    matches = ((form, _taken(form, given, keywords)) for form in _forms(function))
    form, taken = next((match for match in matches if match[1] is not None), ((), None))
    if taken is None:
        return as_given
    try:
        asked = signature(rule)
    except ValueError:
        return as_given
    # The tensor comes first. A rule that has a parameter for each other name gets them by name, whatever its order.
    first = form[0].name if given == 0 and form[0].name in taken else None
    front: tuple[tuple[str | None, Any], ...] = () if first is None else ((taken[first], None),)
    names = tuple((name, keyword) for name, keyword in taken.items() if name != first)
    by_name = _Order(front, names)
    own = {
        p.name for p in asked.parameters.values() if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    if own.issuperset(dict(names)) and _accepts(asked, given + len(front), dict(names)):
        return by_name
    last = max((i for i, a in enumerate(form) if a.name in taken and not a.by_name_only), default=given - 1)
    places = tuple((taken[a.name], None) if a.name in taken else (None, a.default) for a in form[given : last + 1])
    rest = tuple((a.name, taken[a.name]) for a in form if a.by_name_only and a.name in taken)
    by_place = _Order(places, rest)
    return by_place if _accepts(asked, given + len(places), dict(rest)) else by_name


@cache
def writes_to_out(function: Any) -> bool:
    """Whether a function's `out` is where torch writes the result, and no argument like others."""
    return not any(a.name == "out" and a.default is Parameter.empty for form in _forms(function) for a in form)


def call(function: Any, rule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `rule` makes of the call `function(*args, **kwargs)`."""
    if "out" in kwargs and kwargs["out"] is None:
        kwargs = {name: value for name, value in kwargs.items() if name != "out"}
    order = _order(function, rule, len(args), tuple(kwargs))
    places = [default if keyword is None else kwargs[keyword] for keyword, default in order.places]
    return rule(*args, *places, **{name: kwargs[keyword] for name, keyword in order.names})
