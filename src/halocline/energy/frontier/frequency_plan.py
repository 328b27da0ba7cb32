"""A frequency plan: the frequency at which each rank runs each of its instructions, in the order of its list. Written
and read as JSON; knows nothing of how it was found.

    {
      "format": "halocline frequency plan 1",
      "deadline": 2.9, "time": 2.8997, "energy": 5630.1,      seconds, seconds, joules
      "note": "simulated",
      "letters": {"F": "forward", "B": "backward"},
      "ranks": [{"order": "FFFB...", "frequencies": [1410, 1380, ...]}, ...]
    }
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = "halocline frequency plan 1"

_LETTERS = {
    "forward": "F",
    "backward": "B",
    "backward-input": "I",
    "backward-weight": "W",
    "recompute": "R",
    "reduce": "S",
}


@dataclass(frozen=True)
class FrequencyPlan:
    """What one iteration runs at, and what that takes."""

    deadline: float
    """The seconds it was made for."""
    time: float
    """The seconds it takes, at most the deadline."""
    energy: float
    """Joules of all ranks of all replicas over its time; each second more of waiting adds their blocking power."""
    frequencies: tuple[tuple[tuple[str, int], ...], ...]
    """For each rank of a replica, its instructions that have a frequency, in order: (kind, MHz). Replicas run alike."""
    note: str = ""
    """Where the numbers come from, e.g. "simulated"."""

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

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> FrequencyPlan:
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text (byte {error.start}): give a frequency plan") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


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
    for frequency in frequencies:
        if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency <= 0:
            raise ValueError(f"rank {rank} has a frequency of {frequency!r}: give whole MHz above 0")
    return tuple(zip((letters[letter] for letter in order), frequencies))
