"""`halocline schedule show`: the checked instructions of every rank, as text that `schedule check` reads back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from halocline.cli.plan_options import PlanOptions, plan_from_options
from halocline.schedule import generate
from halocline.schedule.text import write


@dataclass(frozen=True)
class Options(PlanOptions):
    """The instructions of every rank of one replica, with the plan in front: text to read, keep and edit."""

    out: str | None = None
    """Write to this file instead of the terminal."""


def run(options: Options) -> int:
    text = write(generate(plan_from_options(options)))
    if options.out is None:
        print(text, end="")
    else:
        Path(options.out).write_text(text, encoding="utf-8")
        print(f"wrote {options.out}")
    return 0
