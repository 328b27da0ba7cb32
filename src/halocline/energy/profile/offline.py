"""The profile of a run that is over, from its timing files (see timing_csv): what a sweep would have found, without
running again.

Files of ours carry stage and frequency with every row. Perseus's do not: then the stage follows from the rank, and the
frequency is one for the whole run, or follows from the steps, some at each frequency from the first down:

    warm-up | 1410 1410 1410 ... | 1395 1395 1395 ... | ...
              x    keep  keep  x   x    keep  keep  x         steps next to a change are left out: who wrote the files
                                                              may have changed the clock a step or two off
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from halocline.energy.controller import BATCH_INPUT, Span
from halocline.energy.device.meter import Reading
from halocline.energy.profile.attribution import WAITING, Attribution, Powers, measurements
from halocline.energy.profile.table import Estimate, Found, of_team
from halocline.energy.profile.timing_csv import ranks_in, read_energy, read_instructions
from halocline.schedule.instruction import FORWARD

_MARGIN = 2
"""Steps that are left out on each side of a change of frequency that is only inferred."""


@dataclass(frozen=True)
class Missing:
    """What files that do not say it are about."""

    frequency: int | None = None
    """MHz of the whole run."""
    frequencies: tuple[int, ...] = ()
    """MHz in the order in which they were played."""
    warmup: int = 5
    """Steps before the first of them."""
    steps: int = 30
    """Steps at each of them."""
    microbatches: int | None = None
    """Forwards of a rank in a step."""
    stages: int | None = None
    """Of the pipe (left out: a stage per rank)."""


class Derived(NamedTuple):
    """What the files tell."""

    found: Found
    blocking: Estimate | None
    """Watts while waiting."""


def derive(directory: str | Path, missing: Missing | None = None) -> Derived:
    """The profile of the run whose timing files lie in a directory."""
    missing = missing or Missing()
    ranks = ranks_in(directory)
    if not ranks:
        raise ValueError(
            f"{directory} holds no instructions-R.csv: give a run's directory, of --export_timing_csv true"
        )
    stages = missing.stages or len(ranks)
    if len(ranks) % stages:
        raise ValueError(f"{len(ranks)} ranks in {directory} do not share {stages} stages: give another --stages")
    parts: dict[tuple[int, str, int], list[tuple[Estimate, Estimate]]] = {}
    blocking: list[Estimate] = []
    for number, rank in enumerate(ranks):
        spans = read_instructions(directory, rank, number // (len(ranks) // stages))
        spans = _clocked([span for span in spans if span.instruction.kind != BATCH_INPUT], missing, str(directory))
        readings = read_energy(directory, rank)
        if len(readings) < 2:
            raise ValueError(
                f"time-energy-{rank}.csv in {directory} has {len(readings)} readings: it needs a run with a meter"
            )
        powers = _attributed(spans, readings)
        if not powers and any(span.frequency is not None for span in spans):
            raise ValueError(
                f"no two readings of time-energy-{rank}.csv ({readings[0].time:.3f} to {readings[-1].time:.3f} s) fall "
                f"into what instructions-{rank}.csv tells ({min(s.start for s in spans):.3f} to "
                f"{max(s.end for s in spans):.3f} s): use files of one run and one clock, and a longer run"
            )
        if WAITING in powers:
            blocking.append(powers[WAITING])
        for stage, kind, frequency, time, energy in measurements(spans, powers):
            if frequency is not None and energy is not None:
                parts.setdefault((stage, kind, frequency), []).append((time, energy))
    found = {key: of_team(*zip(*pairs)) for key, pairs in parts.items()}
    return Derived(found, min(blocking, key=lambda power: power.error) if blocking else None)


def _clocked(spans: Sequence[Span], missing: Missing, where: str) -> list[Span]:
    """The spans with their frequencies; where it is in doubt it stays None."""
    # Where some rows say it, the others are from before the first clock was set.
    said = any(span.frequency is not None for span in spans)
    if spans and not said and not missing.frequencies and missing.frequency is None:
        raise ValueError(
            f"the files in {where} do not say at which frequency the run was: give --frequency MHZ, or --frequencies "
            f"with --profile-warmup, --profile-steps and --microbatches"
        )
    told = _inferred(spans, missing) if missing.frequencies else [missing.frequency] * len(spans)
    return [s if s.frequency is not None else s._replace(frequency=frequency) for s, frequency in zip(spans, told)]


def _inferred(spans: Sequence[Span], missing: Missing) -> list[int | None]:
    """The frequency of each span by counting steps."""
    if missing.microbatches is None:
        raise ValueError(
            "frequencies can only be told by counting steps, and a step's forwards are unknown: give --microbatches"
        )
    found: list[int | None] = []
    forwards = 0
    for span in spans:
        forward = span.instruction.kind == FORWARD
        step = max(0, forwards - (not forward)) // missing.microbatches - missing.warmup
        forwards += forward
        window, place = divmod(step, missing.steps)
        sure = min(_MARGIN, (missing.steps - 1) // 2)
        known = 0 <= window < len(missing.frequencies) and sure <= place < missing.steps - sure
        found.append(missing.frequencies[window] if known else None)
    return found


def _attributed(spans: Sequence[Span], readings: Sequence[Reading]) -> Powers:
    """Powers, from the pieces of the run in which it is known what was done."""
    attribution, rest = Attribution(), list(readings)
    for held in _pieces(spans):
        end = max(span.end for span in held)
        after = next((n for n, reading in enumerate(rest) if reading.time > end), len(rest))
        attribution.add(held[0].start, end, held, rest[:after])
        rest = rest[after:]
    return attribution.powers()


def _pieces(spans: Sequence[Span]) -> list[list[Span]]:
    """The run, cut where nothing was done for long (a checkpoint, an evaluation) or the frequency is in doubt."""
    long = max(1.0, 20 * max((span.seconds for span in spans), default=0.0))
    pieces: list[list[Span]] = [[]]
    for span in spans:
        if pieces[-1] and (span.frequency is None or span.start - pieces[-1][-1].end > long):
            pieces.append([])
        if span.frequency is not None:
            pieces[-1].append(span)
    return [piece for piece in pieces if piece]
