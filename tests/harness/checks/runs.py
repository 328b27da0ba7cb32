"""Runs of the trainer for the tests, on this process or on each of several: small, float64, synthetic images."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path
from typing import Any

from torch import nn

from halocline.models.model import Model
from halocline.models.small import Shortcut
from halocline.plan import Plan
from halocline.runtime.parallel.shard import shard
from halocline.runtime.state import state_of
from halocline.train import Settings, Trainer
from halocline.train.checkpoint import Checkpoint
from halocline.train.metrics import read

CLASSES = 10
SETTINGS: dict[str, Any] = {
    "dtype": "float64",
    "device": "cpu",
    "optimizer": "adamw",
    "lr": 0.01,
    "weight_decay": 0.1,
    "lr_schedule": "cosine",
    "warmup": 2,
    "steps": 6,
    "samples": 40,
    "deadline": 60.0,
}


def network() -> Model:
    """Like small-cnn, but without biases in front of norms: their gradients are rounding errors, of which Adam makes
    steps."""

    def block(channels: int, out: int, stride: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    layers = [
        lambda: block(3, 6, 2),
        lambda: Shortcut(6),
        lambda: nn.MaxPool2d(3, 2, 1),
        lambda: block(6, 8, 1),
        lambda: Shortcut(8),
        lambda: nn.Sequential(nn.Dropout2d(0.1), block(8, 8, 2)),
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(8, CLASSES),
    ]
    return Model("network", layers, image=(24, 20))


def train(directory: str, plan: str, **settings: Any) -> dict[str, Any]:
    """One rank's part of a run: what it read of a checkpoint and the digest of all it holds at the end."""
    # The processes that tests keep are daemons, which may have no children: no worker processes.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    wanted: list[str] = []
    read_tensor = Checkpoint.tensor

    def noted(self: Checkpoint, name: str) -> Any:
        wanted.append(name)
        return read_tensor(self, name)

    Checkpoint.tensor = noted  # type: ignore[method-assign]
    try:
        said = Settings.of(**{**SETTINGS, "run_dir": directory, **settings})
        model = network() if said.model.name is None else None
        trainer = Trainer(said, plan=Plan.from_toml(plan), model=model)
        outcome = trainer.fit()
    finally:
        Checkpoint.tensor = read_tensor  # type: ignore[method-assign]
    held = {n: t for stage in trainer.engine.modules for n, t in state_of(trainer.engine, stage)[0].items()}
    digest = hashlib.sha256(b"".join(shard(held[name]).numpy().tobytes() for name in sorted(held)))
    return {"outcome": outcome, "wanted": wanted, "held": sorted(held), "digest": digest.hexdigest()}


def refused(directory: str, plan: str, **settings: Any) -> str:
    """What a run that cannot begin says."""
    try:
        train(directory, plan, **settings)
    except ValueError as error:
        return str(error)
    return ""


def losses(directory: str | Path) -> list[tuple[int, int, float, float]]:
    """(step, epoch, loss, learning rate) as the run logged them."""
    entries = read(Path(directory) / "metrics.jsonl")
    return [(e["step"], e["epoch"], e["loss"], e["lr"]) for e in entries if e["kind"] == "step"]
