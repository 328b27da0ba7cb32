"""A command line into what was said: flag -> value for the flags that stand in it, and nothing for the others; and what
was said by other programs' flags on its way into Halocline's own words.

argparse does the reading. Before it, every spelling becomes the one it knows (`--local_dp` is `--local-DP`, `--no-x` is
`--x=false`), and a word that is no flag is answered with the one it may have meant. Knows names and kinds; nothing of
what a flag means.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from halocline.plan.flags.fields import EXAMPLES
from halocline.plan.flags.nearest import nearest
from halocline.plan.require import require_choice

TRUTH = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def read(
    kinds: Mapping[str, type],
    words: Iterable[str],
    positional: Sequence[str] = (),
    short: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the words say. Words without a flag fill `positional`, all or none of them; `short` maps other spellings to
    flags."""
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=argparse.SUPPRESS
    )
    for name, kind in kinds.items():
        parser.add_argument(spelled(name), dest=name, type=_reading(spelled(name), kind))
    parser.add_argument("plain words", nargs="*")
    try:
        said = vars(parser.parse_intermixed_args(_one_spelling(kinds, list(map(str, words)), short or {})))
    except argparse.ArgumentError as error:
        assert error.argument_name is not None
        example = EXAMPLES[kinds[name_of(error.argument_name, kinds)]]
        if error.message is not None and error.message.startswith("expected"):
            raise ValueError(
                f"{error.argument_name} has 0 values and takes 1: write {error.argument_name} {example}"
            ) from None
        raise ValueError(error.message) from None
    plain = said.pop("plain words", [])
    if plain and len(plain) != len(positional):
        fix = "leave them out"
        if positional:
            fix = f"give 0, or the {len(positional)} words {' '.join(name.upper() for name in positional)}"
        raise ValueError(f"{len(plain)} words belong to no flag ({' '.join(plain)}): {fix}")
    for name, text in zip(positional, plain):
        said.setdefault(name, _reading(name, kinds[name])(text))
    return said


class _Misread(argparse.ArgumentTypeError, ValueError):
    """A word that is no value of its flag's kind."""


def spelled(name: str) -> str:
    return "--" + name.replace("_", "-")


def name_of(flag: str, known: Iterable[str]) -> str:
    """The name that a flag or keyword means, in any spelling; one that is not known may have meant another."""
    names = {_plain(name): name for name in known}
    if _plain(flag) in names:
        return names[_plain(flag)]
    raise _unknown(flag, known)


def _unknown(flag: str, known: Iterable[str]) -> ValueError:
    near = nearest(_plain(flag), known)
    if near is None:
        return ValueError(f"{flag} is not a flag: leave it out; --help all tells those there are")
    return ValueError(f"{flag} is not a flag: did you mean {spelled(near) if flag.startswith('-') else near}?")


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _one_spelling(kinds: Mapping[str, type], words: list[str], short: Mapping[str, str]) -> list[str]:
    """The words with every flag spelled as argparse knows it, and a switch with its value behind `=`."""
    found = []
    switches = {_plain(name): name for name, kind in kinds.items() if kind is bool}
    while words:
        word = words.pop(0)
        flag, equals, text = word.partition("=")
        if flag in short:
            flag = spelled(short[flag])
        if not flag.startswith("--"):
            if flag[:1] == "-" and flag[1:2].isalpha():
                raise _unknown(flag, kinds)
            found.append(word)
            continue
        off = switches.get(_plain(flag).removeprefix("no_")) if _plain(flag) not in map(_plain, kinds) else None
        name = off or name_of(flag, kinds)
        if kinds[name] is bool:
            if not equals and words and words[0].lower() in TRUTH:
                text = words.pop(0)
            said = _reading(spelled(name), bool)(text or "true")
            found.append(f"{spelled(name)}={said != bool(off)}")
        elif not equals and words and words[0].startswith("-") and not words[0].startswith("--"):
            found.append(f"{spelled(name)}={words.pop(0)}")  # a number below 0 is no flag
        else:
            found.append(spelled(name) + equals + text)
    return found


def _reading(flag: str, kind: type) -> Callable[[str], Any]:
    """What turns a word into a value. Its errors are whole sentences, as argparse hands them on."""

    def read_one(text: str) -> Any:
        try:
            return TRUTH[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            what = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
            fix = f"write {flag} for true, or leave it out" if kind is bool else f"write {flag} {EXAMPLES[kind]}"
            raise _Misread(f"{flag} = {text!r} is not {what}: {fix}") from None

    return read_one


# -- other programs' flags -------------------------------------------------------------------------------------------

WHAT = {
    "stages": "the number of stages",
    "replicas": "the number of replicas",
    "microbatches": "the microbatches of a step",
    "passes": "the passes of gems",
    "schedule": "the schedule",
    "recompute": "which stages recompute",
    "balance": "the layers of each stage",
}


class Foreign(NamedTuple):
    """A flag of another program."""

    name: str
    kind: type
    native: str
    """The flag that it is here; empty for one that does nothing, or is refused."""
    help: str = ""
    least: int = 1
    """Of a whole number."""
    nothing: tuple[Any, ...] = ()
    """Values that ask for nothing."""
    values: Mapping[Any, Any] | None = None
    """What each value is here, where it is another."""
    refused: str = ""
    """Why any other value is refused, and what to use, behind `name = value`."""

    @property
    def told(self) -> str:
        """Its help."""
        if self.native:
            return f"as {spelled(self.native)}: {self.help}"
        but = f" but for {' or '.join(map(_text, self.nothing))}" if self.nothing else ""
        return f"Refused{but}: it {self.refused}." if self.refused else self.help


@dataclass
class Said:
    """A command line on its way into Halocline's own words."""

    foreign: dict[str, Any]
    """Other programs' flags that were said."""
    words: dict[str, Any]
    """Halocline's flags."""
    names: dict[str, str] = field(default_factory=dict)
    """Halocline's flag -> the other program's flag that said it."""
    table: Mapping[str, Foreign] = field(default_factory=dict)

    def say(self, flag: str, value: Any, name: str) -> None:
        """`name` says that `flag` is `value`."""
        if flag in self.words and self.words[flag] != value:
            both = f"{self.names.get(flag, flag)} = {self.words[flag]} and {name} = {value}"
            what = WHAT.get(flag, f"what {spelled(flag)} is")
            raise ValueError(f"{both} both say {what}: give one of them, or make them equal")
        self.words[flag] = value
        self.names.setdefault(flag, name)

    def same(self, *names: str) -> None:
        """Flags that are ours under another name."""
        for name in names:
            if name in self.foreign:
                flag, value = self.table[name], self.foreign[name]
                if value in flag.nothing:
                    continue
                if flag.refused and value not in (flag.values or ()):
                    raise ValueError(f"{name} = {_text(value)} {flag.refused}")
                if flag.values is not None:
                    require_choice(name, value, flag.values)
                    value = flag.values[value]
                if not flag.native:
                    continue
                if flag.kind is int and value < flag.least:
                    fix = "1 or more" if flag.least else "0 for none"
                    raise ValueError(f"{name} = {value} is below {flag.least}: use {fix}")
                self.say(flag.native, value, name)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
