"""What was played, window by window, as energy-R.jsonl in the run's directory: one JSON object a line, written as
training goes.

    {"device": "simulated GPU", "phase": "deployed", "round": 14, "time": 1.06, "energy": 318.2, ...}

`time`, `energy` and `blocking_power` are this rank's own, the first two means over the window's steps; `planned_time`
and `planned_energy` are what the server promised for an iteration of a replica.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from halocline.energy.server_player import Played


def window_file(directory: str | Path, rank: int) -> Path:
    return Path(directory) / f"energy-{rank}.jsonl"


class WindowLog:
    """One rank's file."""

    def __init__(self, directory: str | Path, rank: int, device: str) -> None:
        self._device = device
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._file = open(window_file(directory, rank), "w", buffering=1, encoding="utf-8")

    def write(self, played: Played) -> None:
        schedule, energies = played.schedule, played.energies
        facts: dict[str, Any] = {
            "device": self._device,
            "phase": schedule.phase if schedule is not None else "no server",
            "round": schedule.round if schedule is not None else None,
            "steps": len(played.times),
            "time": sum(played.times) / len(played.times),
            "energy": sum(energies) / len(energies) if energies else None,
            "blocking_power": played.blocking.value if played.blocking is not None else None,
            "planned_time": schedule.time if schedule is not None else None,
            "planned_energy": schedule.energy if schedule is not None else None,
        }
        self._file.write(json.dumps(facts) + "\n")

    def close(self) -> None:
        self._file.close()


def read_windows(directory: str | Path, rank: int) -> list[dict[str, Any]]:
    """The windows of a rank so far; a line that is still being written is left out."""
    path = window_file(directory, rank)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
