"""`halocline schedule check`: proves a schedule that was kept as text, and says what was proved."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from halocline.schedule import ScheduleError, check
from halocline.schedule.text import read

PROVED = (
    "complete: every rank does each forward, backward and message of its roles once, and nothing else",
    "ordered: every tensor is made before it is used, used before it is freed, and freed once",
    "agreed: both sides of every pair of ranks list their messages in the same order",
    "live: no deadlock, even if every send waits for its receive and every team meets for every operation",
    "reduced: each shared stage once, after its last backward; the step once, at the end",
)


@dataclass(frozen=True)
class Options:
    """Proves that a schedule kept as text computes everything once, in an order that data allows, without deadlock.

    Exits with 0 if it does, and with 1 and the first fault if it does not."""

    file: str = ""
    """The schedule, as `halocline schedule show --out FILE` writes it. May be given as a plain word."""
    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> int:
    if not options.file:
        raise ValueError("no file to check: write halocline schedule check FILE")
    try:
        text = Path(options.file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{options.file} is not text (byte {error.start}): give what schedule show wrote") from error
    try:
        schedule = read(text)
    except ValueError as error:
        raise ValueError(f"{options.file}: {error}") from error
    try:
        check(schedule)
    except ScheduleError as error:
        if options.json:
            print(json.dumps({"proved": False, "fault": str(error)}))
        print(f"halocline: wrong schedule: {options.file}: {error}", file=sys.stderr)
        return 1
    ranks, instructions = len(schedule.ranks), sum(map(len, schedule.ranks))
    if options.json:
        print(json.dumps({"proved": True, "ranks": ranks, "instructions": instructions}))
    else:
        print(f"{options.file}: proved for {ranks} ranks and {instructions} instructions")
        for line in PROVED:
            print(f"  {line}")
    return 0
