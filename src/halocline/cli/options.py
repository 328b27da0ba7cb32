"""A verb's options from the words behind it, and its help. Every verb that takes a plan takes the same flags, ours and
those of now-dl and Merak.

A verb's `Options` is a tree of frozen dataclasses: its own fields, and groups of settings. Help is a page with what
everyone needs, and names the rest by group; `--help GROUP` and `--help all` tell what each of them does.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from halocline.plan.flags.dialects import DIALECTS, FOREIGN, PASSING, SHORT, native
from halocline.plan.flags.fields import Setting, changed, help_of, settings_of
from halocline.plan.flags.reader import read, spelled
from halocline.train.settings import Settings

T = TypeVar("T")
METAVARS = {int: "N", float: "X", str: "TEXT"}
ALL = "all"


def read_options(
    cls: type[T],
    words: Sequence[str],
    positional: Sequence[str] = (),
    *,
    defaults: Mapping[str, Any] | None = None,
    adapt: Callable[[dict[str, Any]], None] = lambda said: None,
) -> T:
    """The options that a command line says. `defaults` take the place of the options' own where nothing is said;
    `adapt` may change what was said, before other programs' flags become ours."""
    known = settings_of(cls)
    kinds = {one.flag: one.kind for one in known.values()}
    short = {**SHORT, **{one.also: one.flag for one in known.values() if one.also}}
    if _takes_a_plan(known):
        kinds = {**PASSING, **{name: flag.kind for name, flag in FOREIGN.items()}, **kinds}
        said = read(kinds, words, positional, short)
        adapt(said)
        # What another program's flags say of things that this verb does not ask about is passed over.
        said = {flag: value for flag, value in native(said).items() if flag in known}
    else:
        said = read(kinds, words, positional, short)
    base = changed(cls(), defaults or {})
    settings = getattr(base, "settings", None)
    if not isinstance(settings, Settings):
        return changed(base, said)
    if str(said.get("model")).endswith(".toml"):
        settings = Settings.load(said.pop("model"))
    theirs = settings_of(Settings)
    own = changed(base, {flag: value for flag, value in said.items() if flag not in theirs})
    settings = settings.saying({flag: value for flag, value in said.items() if flag in theirs})
    return dataclasses.replace(own, settings=settings)  # type: ignore[type-var]


def _takes_a_plan(known: Mapping[str, Setting]) -> bool:
    return {"plan", "stages"} <= known.keys()


# -- help ----------------------------------------------------------------------------------------------------------


def help_parser(
    cls: type,
    prog: str,
    topic: str | None = None,
    *,
    dialect: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> argparse.ArgumentParser:
    """What prints the help of a verb: a page, or all of a group. A program that speaks a `dialect` begins with its
    flags."""
    known, docs = settings_of(cls), help_of(cls)
    groups: dict[str, list[Setting]] = {}
    for one in known.values():
        groups.setdefault(one.group, []).append(one)
    dialects = DIALECTS if _takes_a_plan(known) else {}
    names = [name for name in (*groups, *dialects) if name]
    if topic not in (None, ALL) and topic.lower() not in map(str.lower, names):  # type: ignore[union-attr]
        raise ValueError(f"--help {topic} names no group: use --help, --help {ALL}, or one of {', '.join(names)}")
    chosen = [name for name in names if topic == ALL or name.lower() == (topic or dialect or "").lower()]
    parser = argparse.ArgumentParser(prog=prog, usage=argparse.SUPPRESS, add_help=False, formatter_class=_Formatter)
    if topic is None:
        parser.usage = f"{prog} [--flag VALUE ...]"
        parser.description = " ".join((inspect.getdoc(cls) or "").split())
    if topic in (None, ALL):
        common = [one for one in known.values() if one.group and one.common and topic is None]
        _add(parser.add_argument_group("options"), [*common, *groups.get("", ())], docs, defaults or {})
    for name in chosen:
        if name in groups:
            _add(parser.add_argument_group(docs[f"{name}:"]), groups[name], docs, defaults or {})
            continue
        shown = parser.add_argument_group(f"{name}'s flags, and what they are called here")
        for flag in dialects[name]:
            _one(shown, flag.name, flag.kind, flag.told)
    if topic is None and names:
        rest = {docs[f"{name}:"]: [one.flag for one in groups[name] if not one.common] for name in groups if name}
        rest |= {
            f"{name}'s flags": [flag.name for flag in dialects[name] if not flag.refused]
            for name in dialects
            if name not in chosen
        }
        listed = [f"  {title}\n{_wrapped(flags)}\n" for title, flags in rest.items() if flags]
        topics = ", ".join([*map(str.lower, names), ALL])
        ask = f"{prog.split(' [')[0]} --help GROUP tells what they do; GROUP is one of {topics}."
        parser.epilog = "\n".join(["more, by group:\n", *listed, ask])
    return parser


def _wrapped(flags: Iterable[str]) -> str:
    indent = " " * 4
    text = " ".join(map(spelled, flags))
    return textwrap.fill(text, _width(), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _add(shown: Any, settings: Iterable[Setting], docs: Mapping[str, str], defaults: Mapping[str, Any]) -> None:
    for one in settings:
        text, default = docs[one.flag], defaults.get(one.flag, one.default)
        if default not in (None, False, "", dataclasses.MISSING):
            text = f"{text} (default: {default})"
        _one(shown, one.flag, one.kind, text)


def _one(shown: Any, name: str, kind: type, text: str) -> None:
    value: dict[str, Any] = {"action": "store_true"} if kind is bool else {"metavar": METAVARS[kind]}
    shown.add_argument(spelled(name), help=text.replace("%", "%%"), **value)


def _width() -> int:
    return min(110, int(os.environ.get("COLUMNS") or shutil.get_terminal_size().columns) - 2)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else textwrap.fill(text, width)
