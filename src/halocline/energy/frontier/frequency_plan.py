"""A frequency plan: the frequency at which each rank runs each of its instructions, in the order of its list. Written
and read as JSON; the Python lists of Perseus and lowtime are read too. Knows nothing of how it was found.

    {
      "format": "halocline frequency plan 1",
      "deadline": 2.9, "time": 2.8997, "energy": 5630.1,      seconds, seconds, joules
      "note": "simulated",
      "letters": {"F": "forward", "B": "backward"},
      "ranks": [{"order": "FFFB...", "frequencies": [1410, 1380, ...]}, ...]
    }

A Python list holds a row for each stage, or for each rank of the job. Times and energies it has none.

    [[("forward", 1410), ("forward", 1380), ("backward", 1410), ...], ...]      lowtime, Zeus
    [[1410, 1380, 1410, ...], ...]                                              Perseus: MHz, the schedule names them
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halocline.energy.profile.table import kind_of

FORMAT = "halocline frequency plan 1"

_LETTERS = {
    "forward": "F",
    "backward": "B",
    "backward-input": "I",
    "backward-weight": "W",
    "recompute": "R",
    "reduce": "S",
    "": "-",  # not named
}

_LONGEST_LIST = 4 << 20
"""Bytes of a Python list, comments included."""
_MOST_ROWS = 1 << 16
_MOST_INSTRUCTIONS = 1 << 16
"""Of all rows of a Python list: what Python makes of it takes a kilobyte for each."""
_DEEPEST = 3
"""The list, its rows, their pairs."""
_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<open>[\[(])|(?P<close>[\])])|(?P<comma>,)|(?P<word>'[\w-]{1,40}'|"[\w-]{1,40}"|\d{1,9}(?:\.\d{0,9})?(?![\d.]))""",
    re.ASCII,
)
"""What a list of rows is made of. Nothing else reaches Python's parser, which deep nesting and long sums can crash."""


@dataclass(frozen=True)
class FrequencyPlan:
    """What one iteration runs at, and what that takes."""

    deadline: float
    """The seconds it was made for."""
    time: float
    """The seconds it takes, at most the deadline; 0 where the file does not say."""
    energy: float
    """Joules of all ranks of all replicas over its time; each second more of waiting adds their blocking power."""
    frequencies: tuple[tuple[tuple[str, int], ...], ...]
    """For each rank of a replica, its instructions that have a frequency, in order: (kind, MHz). Replicas run alike. A
    plan that was given may have a row for each place instead, or for each rank of all replicas, and kinds that are ""
    where the file names none."""
    note: str = ""
    """Where the numbers come from, e.g. "simulated"."""

    @property
    def timed(self) -> bool:
        """Whether it says how long it takes."""
        return self.time > 0

    def to_json(self) -> str:
        numbers = {"deadline": self.deadline, "time": self.time, "energy": self.energy}
        letters = {letter: kind for kind, letter in _LETTERS.items()}
        ranks = [
            {"order": "".join(_LETTERS[kind] for kind, _ in row), "frequencies": [frequency for _, frequency in row]}
            for row in self.frequencies
        ]
        return json.dumps({"format": FORMAT, **numbers, "note": self.note, "letters": letters, "ranks": ranks})

    @classmethod
    def from_json(cls, text: str) -> FrequencyPlan:
        """The plan a text holds; ValueError where it holds none."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON ({error}): give a frequency plan") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            shown = found.get("format") if isinstance(found, dict) else found
            raise ValueError(f"format is {str(shown)[:60]!r}, not {FORMAT!r}: give a frequency plan")
        letters, rows = found.get("letters"), found.get("ranks")
        if not isinstance(letters, dict) or not all(isinstance(kind, str) for kind in letters.values()):
            raise ValueError('letters is not an object of names: write e.g. {"F": "forward"}')
        if not isinstance(rows, list):
            raise ValueError("ranks is not a list: give an order and frequencies for each rank")
        return cls(
            _seconds(found, "deadline"),
            _seconds(found, "time"),
            _seconds(found, "energy"),
            tuple(_row(number, row, letters) for number, row in enumerate(rows)),
            str(found.get("note", "")),
        )

    @classmethod
    def from_literal(cls, text: str) -> FrequencyPlan:
        """The plan that a Python list of rows is; ValueError where the text is anything else. Nothing is evaluated."""
        _require_plain(text)
        try:
            found = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise ValueError(f"not a Python list ({' '.join(str(error).split())[:80]}): {_WRITE}") from None
        if not isinstance(found, (list, tuple)) or not found:
            raise ValueError(f"no list of rows: {_WRITE}")
        if len(found) > _MOST_ROWS:
            raise ValueError(f"{len(found)} rows are more than {_MOST_ROWS}: give a row for each stage")
        return cls(0.0, 0.0, 0.0, tuple(_pairs(number, row) for number, row in enumerate(found)))

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> FrequencyPlan:
        """The plan of a file: a Python list where the name ends in .py, else JSON."""
        path = Path(path)
        try:
            if path.suffix == ".py":
                return cls.from_literal(_short_text(path))
            return cls.from_json(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text (byte {error.start}): give a frequency plan") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


_WRITE = 'write a row for each stage, [[("forward", 1410), ("backward", 1410)], ...]'


def _seconds(found: dict[str, Any], name: str) -> float:
    value = found.get(name)
    # What compares false with itself is NaN, which Python's JSON lets through.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} = {value!r} is not a finite number of at least 0: give one")
    return float(value)


def _row(rank: int, row: Any, letters: dict[str, str]) -> tuple[tuple[str, int], ...]:
    order = row.get("order") if isinstance(row, dict) else None
    frequencies = row.get("frequencies") if isinstance(row, dict) else None
    if not isinstance(order, str) or not isinstance(frequencies, list):
        raise ValueError(f"rank {rank} has no order and frequencies: give it both")
    if len(order) != len(frequencies):
        raise ValueError(f"rank {rank} has {len(order)} instructions and {len(frequencies)} frequencies: give one each")
    for letter in order:
        if letter not in letters:
            raise ValueError(f"rank {rank} has an instruction {letter!r} that letters does not name: add it")
    return tuple((letters[letter], _mhz(f"rank {rank}", frequency)) for letter, frequency in zip(order, frequencies))


def _mhz(where: str, frequency: Any) -> int:
    if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency <= 0:
        raise ValueError(f"{where} has a frequency of {repr(frequency)[:60]}: give whole MHz above 0")
    return frequency


def _short_text(path: Path) -> str:
    """Of a file that is no larger than a plan needs to be; what never ends (a device, a pipe) is not even opened."""
    if path.exists() and not path.is_file():
        raise ValueError("not a file: give one that holds a frequency plan")
    with path.open("rb") as file:
        found = file.read(_LONGEST_LIST + 1)
    if len(found) > _LONGEST_LIST:
        raise ValueError(f"more than the {_LONGEST_LIST} bytes that a plan may have: leave out what is no row")
    return found.decode()


def _require_plain(text: str) -> None:
    """Whether a text is made of brackets, names in quotes, numbers and comments, neither too deep nor too long. Without
    the commas between them they would be calls and sums of words."""
    at = depth = parts = 0
    ended = False  # whether a value has, so that a comma must come before the next
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            what = f"{text[at : at + 20]!r} where a bracket, a name in quotes or a whole number belongs"
            raise ValueError(f"{_line(text, at)} has {what}: {_WRITE}")
        begins = token["open"] is not None or token["word"] is not None
        if (begins and ended) or (token["comma"] is not None and not ended):
            what = "no comma before" if ended else "nothing before"
            raise ValueError(f"{_line(text, at)} has {what} {text[at : at + 20]!r}: {_WRITE}")
        if token.lastgroup is not None:
            ended = token["close"] is not None or token["word"] is not None
        depth += (token["open"] is not None) - (token["close"] is not None)
        if depth > _DEEPEST:
            raise ValueError(f"{_line(text, at)} has brackets {depth} deep and a plan has {_DEEPEST}: {_WRITE}")
        parts += begins
        at = token.end()
    if parts > 3 * _MOST_INSTRUCTIONS:
        raise ValueError(
            f"{parts} names, numbers and brackets are more than {3 * _MOST_INSTRUCTIONS}, of {_MOST_INSTRUCTIONS} "
            f"instructions: give a row for each stage, not for each rank"
        )


def _line(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}"


def _pairs(number: int, row: Any) -> tuple[tuple[str, int], ...]:
    """One row of a Python list."""
    where = f"row {number}"
    if not isinstance(row, (list, tuple)):
        raise ValueError(f"{where} is {repr(row)[:60]}: {_WRITE}")
    found = []
    for entry in row:
        name, frequency = entry if isinstance(entry, (list, tuple)) and len(entry) == 2 else ("", entry)
        kind = kind_of(name) if isinstance(name, str) else None
        if kind not in _LETTERS:
            kinds = ", ".join(filter(None, _LETTERS))
            raise ValueError(f"{where} has an instruction {repr(name)[:60]}: use one of {kinds}")
        found.append((kind, _mhz(where, frequency)))
    return tuple(found)
