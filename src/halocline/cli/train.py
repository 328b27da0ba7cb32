"""`halocline train`: trains a model under a plan, on processes of this machine or on those a launcher has started."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from halocline.plan.settings import AUTO
from halocline.train.settings import Settings


@dataclass(frozen=True)
class Options:
    """Trains a model under a plan, given by flags or as --plan plan.toml. MODEL may be a file that --write or a run has
    written, and flags override what it says. Started bare it starts the processes that the plan needs on this machine;
    under torchrun, mpirun or srun it joins those. Ctrl-C finishes the step, saves and leaves; once more leaves at
    once."""

    settings: Settings = field(default_factory=Settings)
    dry_run: bool = False
    """Start nothing: say what the run would be, with its plan proved and its time and memory predicted."""
    write: str | None = None
    """Start nothing: write the settings to this file (.toml), which halocline train FILE reads."""


def run(options: Options) -> int:
    settings = options.settings
    if options.write is not None:
        return _write(settings, options.write)
    if settings.model.name is None and settings.run.resume is None and settings.model.from_hf is None:
        raise ValueError(
            "no model to train: write halocline train MODEL, e.g. resnet-v1-20 or package.module:callable; "
            "halocline models lists them"
        )
    if options.dry_run:
        from halocline.cli.dry_run import dry_run

        return dry_run(settings)

    from rich.console import Console

    with Console(stderr=True).status("loading"):
        # torch takes seconds to load: wrong options have been answered by now, and something moves.
        from halocline.train.start import start
    return start(settings)


def _write(settings: Settings, name: str) -> int:
    path = Path(name)
    if path.suffix != ".toml":
        raise ValueError(f"--write {name} does not end in .toml, by which a file is told from MODEL: use {name}.toml")
    if settings.plan.file not in (None, AUTO):
        settings = settings.but(plan=os.path.relpath(settings.plan.file, path.parent))  # named from where the file lies
    path.write_text(settings.to_toml(), encoding="utf-8")
    print(f"wrote {name}")
    return 0
