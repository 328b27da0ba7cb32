"""Reads the files of a run's timing (see timing_csv), also as Perseus's trainer writes them, with three columns. A last
line that was cut off by a crash is left out.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import NamedTuple

from halocline.energy.device.meter import Reading
from halocline.energy.profile.timing_csv import (
    ENERGY_COLUMNS,
    INSTRUCTION_COLUMNS,
    NAMES,
    energy_file,
    instructions_file,
)

_KINDS = {name: kind for kind, name in NAMES.items()}


class Timed(NamedTuple):
    """A row of instructions-R.csv."""

    kind: str
    """An instruction's, or batch-input."""
    start: float
    end: float
    stage: int | None = None
    """None where the file does not say."""
    microbatch: int | None = None
    frequency: int | None = None


def ranks_in(directory: str | Path) -> list[int]:
    """The ranks whose instructions are there."""
    names = (re.fullmatch(r"instructions-(\d+)\.csv", path.name) for path in Path(directory).glob("instructions-*.csv"))
    return sorted(int(name[1]) for name in names if name is not None)


def read_instructions(directory: str | Path, rank: int) -> list[Timed]:
    """A rank's rows in order of time."""
    path = instructions_file(directory, rank)
    rows = []
    for number, row in _rows(path, INSTRUCTION_COLUMNS[:3]):
        name = row["instruction"]
        if name not in _KINDS:
            raise ValueError(f"{path}:{number}: instruction {name!r} is not known: use one of {', '.join(_KINDS)}")
        start, end = _number(path, number, row, "start"), _number(path, number, row, "end")
        if end < start:
            raise ValueError(f"{path}:{number}: end {end:.6f} comes before start {start:.6f}: remove the row")
        optional = [_whole(path, number, row, column) for column in INSTRUCTION_COLUMNS[3:]]
        rows.append(Timed(_KINDS[name], start, end, *optional))
    return sorted(rows, key=lambda row: row.start)


def read_energy(directory: str | Path, rank: int) -> list[Reading]:
    """A rank's counter."""
    path = energy_file(directory, rank)
    found: list[Reading] = []
    for number, row in _rows(path, ENERGY_COLUMNS):
        reading = Reading(_number(path, number, row, "time"), _number(path, number, row, "energy"))
        if found and (reading.time <= found[-1].time or reading.energy < found[-1].energy):
            raise ValueError(
                f"{path}:{number}: {reading.time:.6f} s, {reading.energy:g} J does not come after {found[-1].time:.6f} "
                f"s, {found[-1].energy:g} J: a counter only rises"
            )
        found.append(reading)
    return found


def _rows(path: Path, needed: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """Every whole line with its number."""
    text = path.read_text(encoding="utf-8-sig")
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        lines.pop()
    found = csv.reader(lines)
    header = next(found, [])
    missing = [column for column in needed if column not in header]
    if missing:
        raise ValueError(
            f"{path}:1: the header {','.join(header)!r} lacks {', '.join(missing)}: write {','.join(needed)}"
        )
    rows = []
    for number, words in enumerate(found, start=2):
        if len(words) != len(header):
            raise ValueError(f"{path}:{number}: {len(words)} fields where the header has {len(header)}: fill the row")
        rows.append((number, dict(zip(header, words))))
    return rows


def _number(path: Path, number: int, row: dict[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{path}:{number}: {column} = {row[column]!r} is not a finite number: remove the row")
    return value


def _whole(path: Path, number: int, row: dict[str, str], column: str) -> int | None:
    """A column that may be missing or empty."""
    word = row.get(column, "")
    if not word:
        return None
    if not re.fullmatch(r"\d+", word):
        raise ValueError(f"{path}:{number}: {column} = {word!r} is not a whole number: write one, or nothing")
    return int(word)
