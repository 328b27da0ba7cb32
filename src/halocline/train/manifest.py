"""The manifest of a checkpoint: its files with their SHA-256, where each tensor lies, and what a run goes on from.

Pure words, kept as JSON and sealed with its own SHA-256. Knows nothing of tensors' values or of ranks.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
NAME = "manifest.json"
OPTIMIZER = "optimizer."
"""What the name of a tensor of the optimizer begins with: optimizer.<parameter>.<key>."""
RANDOM = "random.torch"
"""The tensor that holds torch's random state."""


class Damaged(ValueError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies and what it is."""

    file: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    step: int
    """Optimizer steps taken."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """File -> its sha256 and bytes."""
    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    """By the names of the one-device model; `optimizer.` in front of what belongs to the optimizer."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Names of the one-device model for a tensor that is kept under another: tied weights."""
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Parameter -> what the optimizer keeps of it that is no tensor."""
    optimizer: str = ""
    """Its class."""
    state: dict[str, Any] = field(default_factory=dict)
    """What the loop goes on from: the sampler's position and the like."""
    config: dict[str, Any] = field(default_factory=dict)
    plan: str = ""
    """As TOML: the plan it was written under. Any other may read it."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def model(self) -> dict[str, TensorEntry]:
        """The tensors of the model alone."""
        return {n: p for n, p in self.tensors.items() if not n.startswith(OPTIMIZER) and n != RANDOM}

    def save(self, directory: Path) -> None:
        """Write it and wait until it is on the disk."""
        body = {"format": FORMAT, **asdict(self)}
        text = json.dumps({**body, "sha256": _seal(body)}, indent=1)
        with open(directory / NAME, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Read and check it. The files it names are checked by whoever reads them."""
        path = directory / NAME
        if not path.is_file():
            raise Damaged(f"{directory} is not a checkpoint: it has no {NAME}")
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            seal = body.pop("sha256")
            form = body.pop("format")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise Damaged(f"{path} is damaged: it is not the JSON that was written") from error
        if form != FORMAT:
            raise ValueError(f"{path} has format {form} and this version reads {FORMAT}: use the version that wrote it")
        if seal != _seal({"format": form, **body}):
            raise Damaged(f"{path} is damaged: its SHA-256 is not the one it says")
        places = {
            name: TensorEntry(p["file"], tuple(p["shape"]), p["dtype"]) for name, p in body.pop("tensors").items()
        }
        found = cls(tensors=places, **body)
        for file in found.files:
            if Path(file).name != file:
                raise Damaged(f"{path} names the file {file!r}, which lies elsewhere: a checkpoint keeps its own files")
        return found


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
