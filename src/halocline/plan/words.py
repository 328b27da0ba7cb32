"""Command-line words and keywords read into a dataclass of flags, strictly: a typo is answered with the nearest flag.

Reads what argparse-style command lines may say (`--a 1`, `--a=1`, `-` or `_`, any case, `--switch`, `--switch true`,
`--no-switch`) without knowing what a flag means. It needs no tyro, so a plan costs no import; tyro reads the same
dataclass and draws its help.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

from halocline.plan.require import require_type

T = TypeVar("T")
TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def read_words(cls: type[T], words: Sequence[str], *, positional: Sequence[str] = (), short: Mapping[str, str]) -> T:
    """A `cls` from command-line words. Words before the first flag fill the fields `positional`, all or none of them;
    `short` maps one-letter flags to fields."""
    kinds = _kinds(cls)
    values: dict[str, Any] = {}
    plain: list[str] = []
    queue = [str(word) for word in words]
    while queue:
        word = queue.pop(0)
        if word in short:
            word = f"--{short[word]}"
        if not word.startswith("--"):
            plain.append(word)
            continue
        flag, equals, text = word.partition("=")
        name, switch = _field(flag, kinds)
        if kinds[name] is bool:
            if not equals and queue and queue[0].lower() in TRUTH:
                text = queue.pop(0)
            values[name] = (TRUTH[_truth(flag, text)] if text else True) == switch
            continue
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise ValueError(f"{flag} has 0 values and takes 1: write {flag} {_example(kinds[name])}")
            text = queue.pop(0)
        values[name] = _convert(flag, text, kinds[name])
    if plain:
        if len(plain) != len(positional):
            fix = "leave them out"
            if positional:
                fix = f"give 0, or the {len(positional)} words {' '.join(name.upper() for name in positional)}"
            raise ValueError(f"{len(plain)} words belong to no flag ({' '.join(plain)}): {fix}")
        for name, text in zip(positional, plain):
            values.setdefault(name, _convert(name, text, kinds[name]))
    return cls(**values)


def with_fields(flags: T, fields: Mapping[str, Any]) -> T:
    """The flags with some replaced by keyword: any spelling of a name, a list where the command line takes commas."""
    kinds = _kinds(type(flags))
    values: dict[str, Any] = {}
    for key, value in fields.items():
        name, _ = _field(key, kinds)
        if kinds[name] is str and isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        elif kinds[name] is str and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if value is not None:
            require_type(name, value, kinds[name], _example(kinds[name]))
        values[name] = value
    return dataclasses.replace(flags, **values)  # type: ignore[type-var]


def _kinds(cls: type) -> dict[str, type]:
    """What each field holds: bool, int, float or str (the most general where there are several, None left aside)."""
    hints = get_type_hints(cls)
    kinds: dict[str, type] = {}
    for field in dataclasses.fields(cls):
        options = get_args(hints[field.name]) or (hints[field.name],)
        kinds[field.name] = next(kind for kind in (str, float, int, bool) if kind in options)
    return kinds


def _field(flag: str, kinds: Mapping[str, type]) -> tuple[str, bool]:
    """The field a flag or keyword names, and what the flag alone says of a switch (`--no-x` says False)."""
    known = {_plain(name): name for name in kinds}
    asked = _plain(flag)
    if asked in known:
        return known[asked], True
    off = known.get(asked.removeprefix("no_"))
    if off is not None and kinds[off] is bool:
        return off, False
    near = known[difflib.get_close_matches(asked, known, n=1, cutoff=0.0)[0]]
    spelled = f"--{near.replace('_', '-')}" if flag.startswith("-") else near
    raise ValueError(f"{flag} is not a flag: did you mean {spelled}?")


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _truth(flag: str, text: str) -> str:
    if text.lower() not in TRUTH:
        raise ValueError(f"{flag} = {text!r} is not true or false: write {flag} for true, or leave it out")
    return text.lower()


def _convert(flag: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{flag} = {text!r} is not {what}: write {flag} {_example(kind)}") from None


def _example(kind: type) -> str:
    return {int: "4", float: "2.5", bool: "true", str: "a word"}[kind]
