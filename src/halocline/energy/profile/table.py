"""The profile: how long each instruction of each stage takes at each frequency, and how much energy. It is kept as
profile.csv; beside it a run leaves profile-errors.csv, with one standard deviation of each number.

    # simulated
    stage,instruction,frequency,time,energy
    0,forward,1410,0.0502,23.81
    0,backward,1410,0.0930,44.58
    ...

A row is one microbatch in one stage: MHz, the seconds its team takes, and the joules of one of its ranks (the mean over
them). Columns may stand in any order, in capitals or not, and others may stand beside them. What the lines that begin
with # say is kept as the note, which everything made of the profile repeats. Files and messages call the halves of a
backward `backward_input` and `backward_weight`; inside, all kinds are spelled as in schedules.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from halocline.schedule.instruction import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, RECOMPUTE, REDUCE

INSTRUCTIONS = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, RECOMPUTE, REDUCE)
"""What a row may be about. Forward and backward are needed; the rest is derived where it is missing (see choices)."""

PROFILE, ERRORS = "profile.csv", "profile-errors.csv"

_BLOCKING = re.compile(r"blocking power (\d+(?:\.\d+)?) W")

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")

MOST = 1e15
"""Seconds, joules and watts beyond it are nobody's measurement, and sums of them would leave the numbers there are."""


def kind_of(name: str) -> str:
    """The kind of instruction that a file or a message calls so."""
    return name.replace("_", "-")


def name_of(kind: str) -> str:
    """What files and messages call a kind of instruction."""
    return kind.replace("-", "_")


class Estimate(NamedTuple):
    """A number that was measured."""

    value: float
    error: float
    """One standard deviation."""

    def times(self, other: Estimate) -> Estimate:
        """The product of two independent ones."""
        error = ((self.error * other.value) ** 2 + (other.error * self.value) ** 2) ** 0.5
        return Estimate(self.value * other.value, error)


def of_team(times: Sequence[Estimate], energies: Sequence[Estimate]) -> tuple[Estimate, Estimate]:
    """Of what the ranks of a team measured: it takes as long as its slowest rank; energy is the mean of its ranks."""
    count = len(energies)
    energy = Estimate(sum(e.value for e in energies) / count, sum(e.error**2 for e in energies) ** 0.5 / count)
    return max(times, key=lambda time: time.value), energy


Found = dict[tuple[int, str, int], tuple[Estimate, Estimate]]
"""(stage, kind, MHz) -> seconds and joules of one run on one rank."""


class Row(NamedTuple):
    """One measurement."""

    stage: int
    instruction: str
    """Its kind, as in schedules."""
    frequency: int
    """MHz."""
    time: float
    """Seconds."""
    energy: float
    """Joules of one rank."""

    def __str__(self) -> str:
        return f"stage {self.stage} {name_of(self.instruction)} at {self.frequency} MHz"


@dataclass(frozen=True)
class ProfileTable:
    """All measurements of a pipeline. Checked when it is made."""

    rows: tuple[Row, ...]
    note: str = ""
    """Where the numbers come from, e.g. "simulated"."""

    def __post_init__(self) -> None:
        seen: dict[tuple[int, str, int], Row] = {}
        for row in self.rows:
            _require_row(row)
            other = seen.setdefault(row[:3], row)
            if other is not row:
                raise ValueError(
                    f"{row} stands twice, with {other.time:g} s, {other.energy:g} J and with {row.time:g} s, "
                    f"{row.energy:g} J: keep one row"
                )
        self._require_stages()

    # -- looking up ------------------------------------------------------------------------------------------------

    @property
    def stages(self) -> int:
        return 1 + max(row.stage for row in self.rows)

    @property
    def blocking_power(self) -> float | None:
        """The watts of a rank that waits, where the note says "blocking power 80.00 W" as those of our own runs do."""
        said = _BLOCKING.search(self.note)
        return float(said[1]) if said is not None else None

    def of(self, stage: int, instruction: str) -> tuple[Row, ...]:
        """The rows of one instruction of a stage, highest frequency first; none if it was not measured."""
        return self._groups.get((stage, instruction), ())

    @cached_property
    def _groups(self) -> dict[tuple[int, str], tuple[Row, ...]]:
        groups: dict[tuple[int, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.stage, row.instruction), []).append(row)
        return {key: tuple(sorted(rows, key=lambda row: -row.frequency)) for key, rows in groups.items()}

    # -- in and out ------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | Path) -> ProfileTable:
        """The profile a file holds. Errors name the file and the line."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text (byte {error.start}): give a profile.csv") from error
        return cls.from_text(text, str(path))

    @classmethod
    def from_text(cls, text: str, name: str = "profile") -> ProfileTable:
        """The profile a text holds; `name` is what errors call it."""
        notes: list[str] = []
        numbered: list[tuple[int, list[str]]] = []
        for number, line in enumerate(text.splitlines(), start=1):
            if line.lstrip().startswith("#"):
                notes.append(line.lstrip(" #\t").rstrip())
            elif line.strip():
                numbered.append((number, [word.strip(' \t"') for word in next(csv.reader([line]))]))
        if not numbered:
            raise ValueError(f"{name} is empty: it needs a line {','.join(COLUMNS)!r} and a row per measurement")
        number, header = numbered[0]
        found = [word.lower() for word in header]
        missing = [column for column in COLUMNS if column not in found]
        if missing:
            raise ValueError(
                f"{name}:{number}: the header {','.join(header)!r} lacks {', '.join(missing)}: it must name "
                f"{','.join(COLUMNS)}"
            )
        at = {column: found.index(column) for column in COLUMNS}
        rows: list[Row] = []
        lines: dict[tuple[int, str, int], int] = {}
        for number, words in numbered[1:]:
            try:
                row = _read_row(words, at)
                _require_row(row)
            except ValueError as error:
                raise ValueError(f"{name}:{number}: {error}") from error
            first = lines.setdefault(row[:3], number)
            if first != number:
                raise ValueError(f"{name}:{number}: {row} stands on line {first} already: keep one of the two rows")
            rows.append(row)
        try:
            return cls(tuple(rows), " ".join(filter(None, notes)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def to_text(self) -> str:
        """What `from_text` reads back to the last digit."""
        head = [f"# {' '.join(self.note.split())}"] if self.note else []
        body = [f"{r.stage},{name_of(r.instruction)},{r.frequency},{r.time!r},{r.energy!r}" for r in self.rows]
        return "\n".join([*head, ",".join(COLUMNS), *body]) + "\n"

    def write(self, path: str | Path) -> None:
        Path(path).write_text(self.to_text(), encoding="utf-8")

    # -- checks ----------------------------------------------------------------------------------------------------

    def _require_stages(self) -> None:
        if not self.rows:
            raise ValueError("the profile has 0 rows: it needs forward and backward of every stage")
        groups = self._groups
        for stage in range(self.stages):
            has = {instruction for at, instruction in groups if at == stage}
            if not has:
                raise ValueError(
                    f"stage {stage} has no rows and stage {self.stages - 1} has: measure every stage, counted from 0"
                )
            halves = has & {BACKWARD_INPUT, BACKWARD_WEIGHT}
            if len(halves) == 1 and BACKWARD not in has:
                raise ValueError(f"stage {stage} has {name_of(min(halves))} rows alone: give both halves, or backward")
            for needed, there in ((FORWARD, FORWARD in has), (BACKWARD, BACKWARD in has or len(halves) == 2)):
                if not there:
                    raise ValueError(
                        f"stage {stage} has rows of {', '.join(sorted(map(name_of, has)))} and none of {needed}: "
                        f"add them"
                    )


def _read_row(words: list[str], at: dict[str, int]) -> Row:
    if len(words) <= max(at.values()):
        raise ValueError(f"{len(words)} fields where the header has at least {max(at.values()) + 1}: fill the row")
    given = {column: words[place] for column, place in at.items()}
    return Row(
        _whole("stage", given["stage"]),
        kind_of(given["instruction"].lower()),
        _whole("frequency", given["frequency"]),
        _number("time", given["time"]),
        _number("energy", given["energy"]),
    )


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{name} = {word!r} is not a number: give one") from None


def _whole(name: str, word: str) -> int:
    value = _number(name, word)
    if not math.isfinite(value) or value != int(value):
        raise ValueError(f"{name} = {word!r} is not a whole number: give one")
    return int(value)


def _require_row(row: Row) -> None:
    if row.stage < 0:
        raise ValueError(f"stage = {row.stage} is below 0: count stages from 0")
    if row.instruction not in INSTRUCTIONS:
        raise ValueError(
            f"instruction = {name_of(row.instruction)!r} is not known: use {', '.join(map(name_of, INSTRUCTIONS))}"
        )
    if row.frequency <= 0:
        raise ValueError(f"frequency = {row.frequency} is not above 0: give MHz")
    if not 0 < row.time <= MOST:
        raise ValueError(
            f"time = {row.time:g} of {row} is not a number above 0 and up to {MOST:g}: measure it again, in seconds"
        )
    if not 0 <= row.energy <= MOST:
        raise ValueError(f"energy = {row.energy:g} of {row} is not a number from 0 to {MOST:g}: measure it again")


def write_profile(path: str | Path, found: Found, device: str, blocking: Estimate | None = None) -> Path:
    """Writes profile.csv and profile-errors.csv; `path` is that of profile.csv, or a directory for it. Rows stand by
    stage, forwards first, highest frequency first. The note says the blocking power where it is known."""
    note = f"{device}; blocking power {blocking.value:.2f} W" if blocking is not None else device
    target = Path(path) / PROFILE if Path(path).is_dir() else Path(path)
    keys = sorted(found, key=lambda key: (key[0], key[1] != FORWARD, key[1], -key[2]))
    table = ProfileTable(tuple(Row(*key, *(number.value for number in found[key])) for key in keys), note)
    target.parent.mkdir(parents=True, exist_ok=True)
    table.write(target)
    lines = [f"# {note}: one standard deviation of each number of {target.name}"]
    lines.append("stage,instruction,frequency,time_error,energy_error")
    for stage, kind, frequency in keys:
        time, energy = found[stage, kind, frequency]
        lines.append(f"{stage},{name_of(kind)},{frequency},{time.error!r},{energy.error!r}")
    target.with_name(ERRORS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target
