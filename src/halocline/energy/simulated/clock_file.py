"""The state of a simulated clock as a file, so that other processes see it and can reset it: MHz, or "default"."""

from __future__ import annotations

import os
from pathlib import Path

_DEFAULT = "default"
_WIDTH = 12
"""Every state is as long as every other, so that one write replaces it."""


class ClockFile:
    """One simulated clock's state."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: int | None = None

    def read(self) -> int | None:
        """MHz, or None for the device's own choice."""
        word = self.path.read_text(encoding="ascii").strip() if self.path.exists() else _DEFAULT
        return None if word == _DEFAULT else int(word)

    def write(self, frequency: int | None) -> None:
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        word = _DEFAULT if frequency is None else str(frequency)
        os.pwrite(self._file, f"{word.ljust(_WIDTH - 1)}\n".encode(), 0)
