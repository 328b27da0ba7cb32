"""The profile as a run leaves it: profile.csv, and beside it profile-errors.csv with one standard deviation of each of
its numbers. Where the blocking power is known, the profile's note says it.
"""

from __future__ import annotations

from pathlib import Path

from halocline.energy.profile.attribution import Estimate
from halocline.energy.profile.table import ProfileTable, Row

Found = dict[tuple[int, str, int], tuple[Estimate, Estimate]]
"""(stage, kind, MHz) -> seconds and joules of one run on one rank."""

PROFILE, ERRORS = "profile.csv", "profile-errors.csv"


def table_of(found: Found, note: str) -> ProfileTable:
    """By stage, forwards first, highest frequency first."""
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[0][1] != "forward", item[0][1], -item[0][2]))
    return ProfileTable(
        tuple(
            Row(stage, kind.replace("-", "_"), frequency, time.value, energy.value)
            for (stage, kind, frequency), (time, energy) in ordered
        ),
        note,
    )


def write_profile(path: str | Path, found: Found, device: str, blocking: Estimate | None = None) -> Path:
    """Writes both files; `path` is that of profile.csv, or a directory for it."""
    note = f"{device}; blocking power {blocking.value:.2f} W" if blocking is not None else device
    target = Path(path) / PROFILE if Path(path).is_dir() else Path(path)
    table = table_of(found, note)
    target.parent.mkdir(parents=True, exist_ok=True)
    table.write(target)
    lines = [f"# {note}: one standard deviation of each number of {target.name}"]
    lines.append("stage,instruction,frequency,time_error,energy_error")
    for row in table.rows:
        time, energy = found[row.stage, row.instruction.replace("_", "-"), row.frequency]
        lines.append(f"{row.stage},{row.instruction},{row.frequency},{time.error!r},{energy.error!r}")
    target.with_name(ERRORS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target
