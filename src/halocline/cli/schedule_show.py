"""`halocline schedule show`: the checked instructions of every rank, as text that `schedule check` reads back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from halocline.cli.simulate import plan_to_simulate
from halocline.plan.settings import PlanSettings
from halocline.schedule import generate
from halocline.schedule.text import write


@dataclass(frozen=True)
class Options:
    """The instructions of every rank of one replica, with the plan in front: text to read, keep and edit.
    Without --stages, --microbatches and --schedule these are 4, 8 and 1f1b."""

    plan: PlanSettings = field(default_factory=PlanSettings)
    out: str | None = None
    """Write to this file instead of the terminal."""


def run(options: Options) -> int:
    text = write(generate(plan_to_simulate(options.plan)))
    if options.out is None:
        print(text, end="")
    else:
        Path(options.out).write_text(text, encoding="utf-8")
        print(f"wrote {options.out}")
    return 0
