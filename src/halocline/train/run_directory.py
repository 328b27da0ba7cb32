"""A run's directory: what lies where in it, and which directory and checkpoint a run begins with.

    runs/resnet-v1-20-20250131-120000/
      plan.toml  config.json  metrics.jsonl  timeline/  tensorboard/  checkpoints/step-000120/

Knows paths and settings; nothing of tensors.
"""

from __future__ import annotations

import json
import platform
import re
import time
from dataclasses import dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from halocline.plan.plan import Plan
from halocline.train.config import LATEST, PLAN_FLAGS, Config
from halocline.train.manifest import NAME as MANIFEST

RUNS = Path("runs")
_ENDS = {"steps", "epochs", "num_epochs"}
"""Settings that say when a run ends: what is said now takes the place of all of them."""


@dataclass(frozen=True)
class RunDirectory:
    """What lies where."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.toml"

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def describe(self, plan: Plan, config: Config) -> None:
        """Write the plan and the settings, as this run resolved them."""
        text = json.dumps({**config.to_dict(), "versions": versions()}, indent=1)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            plan.save(self.plan)
            self.config.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ValueError(f"{self.path} cannot be the run's directory ({why}): give another --run-dir") from error


@dataclass(frozen=True)
class Beginning:
    """Where a run writes, and what it goes on from."""

    directory: str
    checkpoint: str | None = None
    """A certain checkpoint to go on from."""
    newest_of: str | None = None
    """A directory of checkpoints of which the newest good one is to go on from."""


def beginning(config: Config, now: float | None = None) -> Beginning:
    """From --run-dir and --resume. Only rank 0 asks, and tells the others."""
    if config.resume is None:
        run = RunDirectory(Path(config.run_dir) if config.run_dir is not None else _new(config, now))
        _require_free(run)
        return Beginning(str(run.path))
    source = Path(config.resume)
    if config.resume == LATEST:
        source = Path(config.run_dir) if config.run_dir is not None else newest_run(RUNS)
        return Beginning(str(source), newest_of=str(RunDirectory(source).checkpoints))
    if (source / MANIFEST).is_file():
        home = source.resolve().parent
        own = home.parent if home.name == "checkpoints" else _new(config, now)
        return Beginning(_elsewhere(config.run_dir, own), checkpoint=str(source))
    if RunDirectory(source).checkpoints.is_dir():
        return Beginning(_elsewhere(config.run_dir, source), newest_of=str(RunDirectory(source).checkpoints))
    raise ValueError(
        f"--resume {config.resume} is neither a run's directory nor a checkpoint's: give {LATEST}, runs/NAME, or "
        f"runs/NAME/checkpoints/step-NNNNNN"
    )


def _elsewhere(directory: str | None, own: Path) -> str:
    """Where a run that goes on writes: into its own directory, or into another that holds no run."""
    if directory is None:
        return str(own)
    if Path(directory).resolve() != own.resolve():
        _require_free(RunDirectory(Path(directory)))
    return directory


def _require_free(run: RunDirectory) -> None:
    if run.metrics.exists() or run.checkpoints.exists():
        raise ValueError(
            f"{run.path} already holds a run: go on with it by --resume {LATEST}, or choose another --run-dir"
        )


def resolved(config: Config) -> tuple[Config, Plan | None]:
    """The settings of a run that is to go on without MODEL being named again, and its plan unless flags give another:
    what it was started with, except for what is said now."""
    if config.model is not None or config.resume is None:
        return config, None
    begin = beginning(config)
    source = Path(begin.checkpoint).parent if begin.checkpoint is not None else Path(str(begin.newest_of))
    run = RunDirectory(source.parent)
    if not run.config.is_file():
        raise ValueError(f"{run.path} has no {run.config.name}, so it does not say which model it trains: name MODEL")
    saved = json.loads(run.config.read_text(encoding="utf-8"))
    known = {field.name: field.default for field in fields(Config)}
    said = {name: getattr(config, name) for name, default in known.items() if getattr(config, name) != default}
    kept = {name: value for name, value in saved.items() if name in known and name not in ("resume", "run_dir")}
    if said.keys() & _ENDS:
        kept = {name: value for name, value in kept.items() if name not in _ENDS}
    plan = Plan.load(run.plan)
    if said.keys() & {*PLAN_FLAGS, "plan"} - {"batch_size", "image_size"}:
        # Another plan, said anew: nothing of the old one's flags, but its images and as many samples a step.
        old = {*PLAN_FLAGS, "plan"} - {"image_size"}
        kept = {name: value for name, value in kept.items() if name not in old}
        kept |= {"accumulate": known["accumulate"]} | _same_batch(said, plan)
        return replace(Config(**{**kept, **said}), run_dir=begin.directory), None
    whole = replace(Config(**{**kept, **said}), run_dir=begin.directory)
    # What was accumulated is in the saved plan already.
    return whole, (None if "batch_size" in said or "image_size" in said else plan)


def _same_batch(said: dict[str, Any], plan: Plan) -> dict[str, int]:
    """The flag that gives a new plan as many samples a step as the old one had."""
    if plan.batch is None or said.keys() & {"plan", "microbatch_size"}:
        return {}
    gems = said.get("schedule") == "gems" or (said.get("times") or 1) > 1
    passes = (said.get("times") or said.get("passes") or 2) if gems else 1
    replicas = said.get("replicas") or said.get("dp") or 1
    return {"batch_size": max(1, plan.batch * plan.replicas // (passes * replicas * said.get("accumulate", 1)))}


def newest_run(root: Path) -> Path:
    """The run that was last written to."""
    found = [path for path in root.glob("*") if RunDirectory(path).config.is_file()]
    if not found:
        raise ValueError(f"there is no run under {root}/ to resume: give --run-dir, or --resume with a path")
    return max(found, key=lambda path: RunDirectory(path).config.stat().st_mtime)


def _new(config: Config, now: float | None) -> Path:
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", config.model or "model")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    path = RUNS / f"{model}-{stamp}"
    number = 2
    while path.exists():
        path = RUNS / f"{model}-{stamp}-{number}"
        number += 1
    return path


def versions() -> dict[str, str]:
    """Of what computed."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for package in ("halocline", "torch", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
