"""What was said, flag by flag, while it is put into Halocline's own words. Two flags that say one thing must agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from halocline.plan.flags.reader import spelled

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
    """The flag that it is here; empty for one that does nothing."""
    help: str
    least: int = 1
    """Of a whole number."""


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
                if flag.kind is int and value < flag.least:
                    fix = "1 or more" if flag.least else "0 for none"
                    raise ValueError(f"{name} = {value} is below {flag.least}: use {fix}")
                self.say(flag.native, value, name)


def by_name(*tables: Iterable[Foreign]) -> dict[str, Foreign]:
    return {flag.name: flag for table in tables for flag in table}
