"""`halocline energy profile`: time and energy of every stage at every frequency, from a run made for it or from the
files of one that is over."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halocline.energy.profile.table import ProfileTable
from halocline.plan.flags.fields import setting
from halocline.train.settings import Settings


@dataclass(frozen=True)
class Options:
    """Trains a model under a plan while the clock goes down its frequencies, until energy no longer falls, and writes
    what each stage's forward and backward took as profile.csv, with error bars in profile-errors.csv beside it. Takes
    the flags of train; --profile-steps steps at each frequency, after --profile-warmup. With --from DIR it derives the
    same from the instructions-R.csv and time-energy-R.csv of a run that is over, whose --stages and --microbatches may
    be said where the files do not say them."""

    settings: Settings = field(default_factory=Settings)

    out: str = "profile.csv"
    """Where the profile goes."""
    from_dir: str | None = setting(None, also="--from")
    """Derive it from the timing files in this directory, of --timing-csv. Also --from."""
    frequency: int | None = None
    """--from: MHz of the whole run, for files that do not say."""
    frequencies: str | None = None
    """--from: MHz in the order in which they were played, --profile-steps steps each, for files that do not say:
    1410,1395,1380, or first:last:step as 1410:1110:15."""
    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> int:
    if options.from_dir is not None:
        return _derive(options, options.from_dir)
    settings = options.settings
    if settings.model.name is None:
        raise ValueError(
            "no model to profile: write halocline energy profile MODEL, or --from DIR of a run that is over"
        )
    from halocline.train.start import start

    with tempfile.TemporaryDirectory(prefix="halocline-profile-") as temporary:
        settings = settings.but(sweep=True, profile=options.out, save_every=0, evaluation_fraction=0.0)
        if settings.run.steps is None:
            settings = settings.but(steps=10**9, epochs=None)  # the sweep ends it
        kept = settings.run.run_dir is not None
        if not kept:
            settings = settings.but(run_dir=str(Path(temporary) / "run"))
        code = start(settings, kept=kept)
    if code == 0:
        _tell(options)
    return code


def _derive(options: Options, directory: str) -> int:
    from halocline.energy.profile.offline import Missing, derive
    from halocline.energy.profile.table import write_profile
    from halocline.energy.profile.timing_csv import meter_name

    missing = Missing(
        options.frequency,
        _listed(options.frequencies),
        options.settings.energy.profile_warmup,
        options.settings.energy.profile_steps,
        options.settings.plan.microbatches,
        options.settings.plan.stages,
    )
    derived = derive(directory, missing)
    write_profile(options.out, derived.found, meter_name(directory) or f"derived from {directory}", derived.blocking)
    _tell(options)
    return 0


def _listed(text: str | None) -> tuple[int, ...]:
    """1410,1395 or 1410:1110:15."""
    if text is None:
        return ()
    try:
        if ":" not in text:
            return tuple(int(word) for word in text.split(","))
        first, last, step = (int(word) for word in text.split(":"))
        return tuple(range(first, last - 1, -abs(step))) if first >= last else tuple(range(first, last + 1, abs(step)))
    except ValueError:
        raise ValueError(f"--frequencies {text!r} is no list: write 1410,1395,1380 or 1410:1110:15") from None


def _tell(options: Options) -> None:
    table = ProfileTable.read(options.out)
    blocking = table.blocking_power
    facts: dict[str, Any] = {"profile": options.out, "note": table.note, "rows": len(table.rows), "stages": []}
    if blocking is not None:
        facts["blocking_power"] = blocking
    for stage in range(table.stages):
        for instruction in ("forward", "backward"):
            rows = table.of(stage, instruction)
            if rows:
                least = min(rows, key=lambda row: row.energy)
                facts["stages"].append(
                    {
                        "stage": stage,
                        "instruction": instruction,
                        "frequencies": len(rows),
                        "highest": rows[0]._asdict(),
                        "least": least._asdict(),
                    }
                )
    if options.json:
        print(json.dumps(facts))
        return
    for part in facts["stages"]:
        top, least = part["highest"], part["least"]
        print(
            f"  stage {part['stage']} {part['instruction']:9s} {part['frequencies']:3d} frequencies; {_at(top)}", end=""
        )
        print(f"; least energy {_at(least)}" if least != top else "")
    if blocking is not None:
        print(f"  blocking power {blocking:.2f} W, which halocline energy frontier takes from the profile")
    print(f"wrote {options.out}: {len(table.rows)} rows, {table.note}")


def _at(row: dict[str, Any]) -> str:
    return f"at {row['frequency']} MHz {row['time'] * 1e3:.2f} ms, {row['energy']:.2f} J"
