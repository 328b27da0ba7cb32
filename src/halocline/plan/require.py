"""Checks of single values whose messages name the field, the value found and the value that would do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    tuple: "a list",
    list: "a list",
    dict: "a table",
}


def require_type(field: str, value: object, kind: type, fix: str) -> None:
    # bool is an int to Python and never to a user.
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return
    if kind is tuple and isinstance(value, list):
        raise ValueError(f"{field} = {value!r} is a list, which could change under a plan: give a tuple, {fix}")
    raise ValueError(f"{field} = {value!r} is not {_WORDS.get(kind, kind.__name__)}: give {fix}")


def require_degree(field: str, value: object) -> None:
    """A degree or count: a whole number of at least 1."""
    require_type(field, value, int, "a whole number of at least 1")
    assert isinstance(value, int)
    if value < 1:
        raise ValueError(f"{field} = {value} is below 1: use 1 or more")


def require_choice(field: str, value: object, choices: Iterable[str]) -> None:
    names = list(choices)
    if value in names:
        return
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"{field} = {value!r} is unknown: {hint}one of {', '.join(names)}")
