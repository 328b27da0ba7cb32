"""The files of a run's timing, as Perseus's trainer names them, written row by row as training goes, and read back.

    instructions-R.csv    instruction,start,end,stage,microbatch,frequency     one row per instruction of rank R
    time-energy-R.csv     time,energy                                          one row per advance of its counter
    meter.txt             what measured, "simulated GPU" for example

Seconds are the machine's, since the epoch; a simulated device's own, since it was made. The first three columns are the
original's and so are the names of forwards, backwards and batch inputs; the rest is ours. `frequency` is empty where no
clock was set. A last line that was cut off by a crash is left out.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from halocline.energy.controller import BATCH_INPUT, DeviceStep, Listener, Span
from halocline.energy.device.meter import Reading
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    RECOMPUTE,
    STEP,
    Instruction,
)

T = TypeVar("T")

INSTRUCTION_COLUMNS = ("instruction", "start", "end", "stage", "microbatch", "frequency")
ENERGY_COLUMNS = ("time", "energy")
_METER = "meter.txt"

NAMES = {
    BATCH_INPUT: "batch_input",
    FORWARD: "forward_microstep",
    BACKWARD: "backward_microstep",
    BACKWARD_INPUT: "backward_input_microstep",
    BACKWARD_WEIGHT: "backward_weight_microstep",
    RECOMPUTE: "recompute_microstep",
    STEP: "optimizer_step",
}
_KINDS = {name: kind for kind, name in NAMES.items()}


def instructions_file(directory: str | Path, rank: int) -> Path:
    return Path(directory) / f"instructions-{rank}.csv"


def energy_file(directory: str | Path, rank: int) -> Path:
    return Path(directory) / f"time-energy-{rank}.csv"


def meter_name(directory: str | Path) -> str | None:
    """What measured the run whose files lie there, e.g. "simulated GPU"; None where nobody says."""
    path = Path(directory) / _METER
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


class TimingCsv(Listener):
    """A listener of the controller: one rank's two files. What was written survives a crash."""

    def __init__(
        self, directory: str | Path, rank: int, *, meter: str | None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """`meter` is its name; without one the second file stays at its header, which is said once."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        # Without a buffer: a row is in the file when it is written.
        self._instructions = open(instructions_file(directory, rank), "wb", buffering=0)
        self._energy = open(energy_file(directory, rank), "wb", buffering=0)
        self._instructions.write(f"{','.join(INSTRUCTION_COLUMNS)}\n".encode())
        self._energy.write(f"{','.join(ENERGY_COLUMNS)}\n".encode())
        if rank == 0:
            (Path(directory) / _METER).write_text(f"{meter or 'none'}\n", encoding="utf-8")
        if meter is None:
            say(f"there is no energy meter here: {energy_file(directory, rank)} holds its header only")

    def span(self, span: Span) -> None:
        instruction, start, end, frequency = span
        microbatch = instruction.microbatch if instruction.microbatch >= 0 else ""
        stage = "" if instruction.kind == STEP else instruction.stage
        clock = "" if frequency is None else frequency
        name = NAMES[instruction.kind]
        self._instructions.write(f"{name},{start:.6f},{end:.6f},{stage},{microbatch},{clock}\n".encode())

    def step(self, step: DeviceStep) -> None:
        for time, energy in step.readings:
            self._energy.write(f"{time:.6f},{energy:.3f}\n".encode())

    def close(self) -> None:
        self._instructions.close()
        self._energy.close()


# -- reading -----------------------------------------------------------------------------------------------------


def ranks_in(directory: str | Path) -> list[int]:
    """The ranks whose instructions are there."""
    names = (re.fullmatch(r"instructions-(\d+)\.csv", path.name) for path in Path(directory).glob("instructions-*.csv"))
    return sorted(int(name[1]) for name in names if name is not None)


def read_instructions(directory: str | Path, rank: int, stage: int = 0) -> list[Span]:
    """A rank's rows in order of time; `stage` is that of rows that do not say theirs."""

    def span(row: dict[str, str]) -> Span:
        name = row["instruction"]
        if name not in _KINDS:
            raise ValueError(f"instruction {name!r} is not known: use one of {', '.join(_KINDS)}")
        start, end = _number(row, "start"), _number(row, "end")
        if end < start:
            raise ValueError(f"end {end:.6f} comes before start {start:.6f}: remove the row")
        place, microbatch, frequency = (_whole(row, column) for column in INSTRUCTION_COLUMNS[3:])
        instruction = Instruction(_KINDS[name], 0, stage if place is None else place, microbatch or 0)
        return Span(instruction, start, end, frequency)

    rows = _read(instructions_file(directory, rank), INSTRUCTION_COLUMNS[:3], span)
    return sorted(rows, key=lambda row: row.start)


def read_energy(directory: str | Path, rank: int) -> list[Reading]:
    """A rank's counter."""
    last: Reading | None = None

    def reading(row: dict[str, str]) -> Reading:
        nonlocal last
        found = Reading(_number(row, "time"), _number(row, "energy"))
        if last is not None and (found.time <= last.time or found.energy < last.energy):
            raise ValueError(
                f"{found.time:.6f} s, {found.energy:g} J does not come after {last.time:.6f} s, {last.energy:g} J: "
                f"a counter only rises"
            )
        last = found
        return found

    return _read(energy_file(directory, rank), ENERGY_COLUMNS, reading)


def _read(path: Path, needed: tuple[str, ...], parse: Callable[[dict[str, str]], T]) -> list[T]:
    """What every whole line says. Errors name the file and the line."""
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
        try:
            if len(words) != len(header):
                raise ValueError(f"{len(words)} fields where the header has {len(header)}: fill the row")
            rows.append(parse(dict(zip(header, words))))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    return rows


def _number(row: dict[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{column} = {row[column]!r} is not a finite number: remove the row")
    return value


def _whole(row: dict[str, str], column: str) -> int | None:
    """A column that may be missing or empty."""
    word = row.get(column, "")
    if not re.fullmatch(r"\d*", word):
        raise ValueError(f"{column} = {word!r} is not a whole number: write one, or nothing")
    return int(word) if word else None
