"""Metrics of a run: one JSON object per line in metrics.jsonl, flushed as it is written, and TensorBoard's files if
asked for. Knows numbers and files; nothing of where the numbers come from.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

STEP, EVALUATION = "step", "evaluation"


class Metrics:
    """Writes metrics; `after` drops the lines beyond that step, which a run that goes on will write again."""

    def __init__(self, path: Path, *, after: int | None = None, tensorboard: Path | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if after is not None and path.exists():
            _shorten(path, after)
        self._file = open(path, "a", encoding="utf-8")
        self._board = _board(tensorboard, after) if tensorboard is not None else None

    def write(self, kind: str, step: int, **values: Any) -> None:
        """`kind` is step or evaluation."""
        line = json.dumps({"kind": kind, "step": step, **{name: _told(value) for name, value in values.items()}})
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ValueError(f"{self._file.name} could not be written ({why}): make room, and go on") from error
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        with suppress(OSError):  # every line was flushed; one that could not be has been told of
            self._file.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _told(value: Any) -> Any:
    """JSON knows no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: Path) -> list[dict[str, Any]]:
    """The objects in a metrics.jsonl. A last line that a crash cut short is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def _shorten(path: Path, after: int) -> None:
    kept = [entry for entry in read(path) if entry["step"] <= after]
    shorter = path.with_name(f".{path.name}.shorter")
    shorter.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
    os.replace(shorter, path)


def _board(directory: Path, after: int | None) -> Any:
    try:
        with warnings.catch_warnings():  # of tensorboard's own imports
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(
            "tensorboard = true but TensorBoard is not installed: pip install 'halocline[tensorboard]'"
        ) from error
    return SummaryWriter(str(directory), purge_step=None if after is None else after + 1)
