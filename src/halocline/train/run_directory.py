"""A run's directory: what lies where in it, and which directory and checkpoint a run begins with.

    runs/resnet-v1-20-20250131-120000/
      plan.toml  run.toml  metrics.jsonl  timeline/  tensorboard/  checkpoints/step-000120/

Knows paths and settings; nothing of tensors.
"""

from __future__ import annotations

import platform
import re
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from halocline.plan.flags.fields import flat
from halocline.plan.plan import Plan
from halocline.train.manifest import NAME as MANIFEST
from halocline.train.settings import LATEST, NOT_REPEATED, SHAPE, Settings

RUNS = Path("runs")
_RANK = re.compile(r"-\d+\.(?=csv$|json$|jsonl$)")
OLD = "config.json"
"""What an older Halocline kept in place of run.toml."""


@dataclass(frozen=True)
class RunDirectory:
    """What lies where."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.toml"

    @property
    def settings(self) -> Path:
        """The file that repeats the run."""
        return self.path / "run.toml"

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

    @property
    def files(self) -> str:
        """What lies in it, in words. The files of all ranks R count as one."""
        names = {f"{entry.name}/" if entry.is_dir() else _RANK.sub("-R.", entry.name) for entry in self.path.iterdir()}
        return f"{self.path}: {', '.join(sorted(names))}"

    def describe(self, plan: Plan, settings: Settings) -> None:
        """Write the plan and the settings, as this run resolved them."""
        about = ", ".join(f"{name} {number}" for name, number in versions().items())
        text = f"# halocline train {self.settings} repeats this run ({about})\n\n{settings.to_toml()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            plan.save(self.plan)
            self.settings.write_text(text, encoding="utf-8")
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


def beginning(settings: Settings, now: float | None = None) -> Beginning:
    """From --run-dir and --resume. Only rank 0 asks, and tells the others."""
    asked, resume = settings.run.run_dir, settings.run.resume
    if resume is None:
        run = RunDirectory(Path(asked) if asked is not None else _new(settings, now))
        _require_free(run)
        return Beginning(str(run.path))
    source = Path(resume)
    if resume == LATEST:
        source = Path(asked) if asked is not None else newest_run(RUNS)
        return Beginning(str(source), newest_of=str(RunDirectory(source).checkpoints))
    if (source / MANIFEST).is_file():
        home = source.resolve().parent
        own = home.parent if home.name == "checkpoints" else _new(settings, now)
        return Beginning(_elsewhere(asked, own), checkpoint=str(source))
    if RunDirectory(source).checkpoints.is_dir():
        return Beginning(_elsewhere(asked, source), newest_of=str(RunDirectory(source).checkpoints))
    raise ValueError(
        f"--resume {resume} is neither a run's directory nor a checkpoint's: give {LATEST}, runs/NAME, or "
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


@dataclass(frozen=True)
class Resolved:
    """The settings of a run, those of one that goes on included."""

    settings: Settings
    plan: Plan | None = None
    """The saved plan, where nothing else is said of it."""
    samples: int | None = None
    """Of a step of the saved run, which a new plan keeps."""


def resolved(settings: Settings) -> Resolved:
    """For a run that is to go on without MODEL being named again: what it was started with, except for what is said
    now."""
    if settings.model.name is not None or settings.run.resume is None:
        return Resolved(settings)
    begin = beginning(settings)
    source = Path(begin.checkpoint).parent if begin.checkpoint is not None else Path(str(begin.newest_of))
    run = RunDirectory(source.parent)
    if not run.settings.is_file():
        if (run.path / OLD).is_file():
            raise ValueError(
                f"{run.path} was written by an older Halocline ({OLD}, no {run.settings.name}): name MODEL and say its "
                f"settings anew, halocline train MODEL --resume {settings.run.resume} ..."
            )
        raise ValueError(f"{run.path} has no {run.settings.name}, so it does not say which model it trains: name MODEL")
    saved, plan = Settings.load(run.settings), Plan.load(run.plan)
    values = flat(settings)
    said = {flag: values[flag] for flag in settings.said if flag not in NOT_REPEATED}
    place = {"run_dir": begin.directory, "resume": settings.run.resume}
    if said.keys() & {*SHAPE, "plan"}:
        # Another plan, said anew: nothing of the old one, but its images and as many samples a step.
        forgotten = {**dict.fromkeys((*SHAPE, "plan", "batch_size", "microbatch_size")), "accumulate": 1}
        samples = None if plan.batch is None else plan.batch * plan.replicas
        return Resolved(saved.but(**forgotten).saying(said).but(**place), samples=samples)
    whole = saved.saying(said).but(**place)
    anew = said.keys() & {"batch_size", "microbatch_size", "image_size", "accumulate", "layers"}
    return Resolved(whole, None if anew else plan)


def newest_run(root: Path) -> Path:
    """The run that was begun or gone on with last."""
    found = [kept for name in (RunDirectory(root).settings.name, OLD) for kept in root.glob(f"*/{name}")]
    if not found:
        raise ValueError(f"there is no run under {root}/ to resume: give --run-dir, or --resume with a path")
    return max(found, key=lambda kept: kept.stat().st_mtime).parent


def _new(settings: Settings, now: float | None) -> Path:
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", settings.model.name or "model")
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
