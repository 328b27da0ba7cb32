"""The profile of a run that is over, from its timing files: what a sweep would have found, without running again.

Files of ours carry stage and frequency with every row. Perseus's do not: then the stage follows from the rank, and the
frequency is one for the whole run, or follows from the steps, some at each frequency from the first down:

    warm-up | 1410 1410 1410 ... | 1395 1395 1395 ... | ...
              x    keep  keep  x   x    keep  keep  x         steps next to a change are left out: who wrote the files
                                                              may have changed the clock a step or two off
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halocline.energy.controller import BATCH_INPUT
from halocline.energy.device.meter import Reading
from halocline.energy.profile.attribution import WAITING, Attribution, Estimate, mean
from halocline.energy.profile.files import Found
from halocline.energy.profile.span import Load, Span, load
from halocline.energy.profile.timing_files import Timed, ranks_in, read_energy, read_instructions
from halocline.schedule.instruction import COMPUTE, FORWARD, Instruction

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


@dataclass(frozen=True)
class Derived:
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
    parts: dict[Load, list[tuple[Estimate, Estimate]]] = {}
    blocking: list[Estimate] = []
    for number, rank in enumerate(ranks):
        spans = _spans(read_instructions(directory, rank), number // (len(ranks) // stages), missing, str(directory))
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
        for name, seconds in _seconds(spans).items():
            time = mean(seconds)
            parts.setdefault(name, []).append((time, powers[name].at_least(0.0).times(time)))
    found = {
        (n.stage, n.kind, n.frequency): _team(p)
        for n, p in parts.items()
        if n.frequency is not None and n.kind in COMPUTE
    }
    return Derived(found, min(blocking, key=lambda power: power.error) if blocking else None)


def _spans(rows: Sequence[Timed], stage: int, missing: Missing, where: str) -> list[Span]:
    """The rows as spans, with stage and frequency; those whose frequency is in doubt keep None."""
    inferred = _inferred(rows, missing) if missing.frequencies else None
    # Where some rows say it, the others are from before the first clock was set.
    said = any(row.frequency is not None for row in rows)
    spans = []
    for number, row in enumerate(rows):
        if row.kind == BATCH_INPUT:
            continue
        frequency = row.frequency
        if frequency is None:
            frequency = inferred[number] if inferred is not None else missing.frequency
            if frequency is None and inferred is None and not said:
                raise ValueError(
                    f"the files in {where} do not say at which frequency the run was: give --frequency MHZ, or "
                    f"--frequencies with --num-warmup-steps, --num-prof-steps and --microbatches"
                )
        at = row.stage if row.stage is not None else stage
        spans.append(Span(Instruction(row.kind, 0, at, row.microbatch or 0), row.start, row.end, frequency))
    return spans


def _inferred(rows: Sequence[Timed], missing: Missing) -> list[int | None]:
    """The frequency of each row by counting steps."""
    if missing.microbatches is None:
        raise ValueError(
            "frequencies can only be told by counting steps, and a step's forwards are unknown: give --microbatches"
        )
    found: list[int | None] = []
    forwards = 0
    for row in rows:
        step = max(0, forwards - (row.kind != FORWARD)) // missing.microbatches - missing.warmup
        forwards += row.kind == FORWARD
        window, place = divmod(step, missing.steps)
        sure = min(_MARGIN, (missing.steps - 1) // 2)
        known = 0 <= window < len(missing.frequencies) and sure <= place < missing.steps - sure
        found.append(missing.frequencies[window] if known else None)
    return found


def _attributed(spans: Sequence[Span], readings: Sequence[Reading]) -> dict[Load, Estimate]:
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


def _seconds(spans: Iterable[Span]) -> dict[Load, list[float]]:
    found: dict[Load, list[float]] = {}
    for span in spans:
        found.setdefault(load(span), []).append(span.seconds)
    return found


def _team(parts: Sequence[tuple[Estimate, Estimate]]) -> tuple[Estimate, Estimate]:
    """Ranks of a stage: as long as the slowest, and the mean of their energies."""
    count = len(parts)
    energy = Estimate(sum(e.value for _, e in parts) / count, sum(e.error**2 for _, e in parts) ** 0.5 / count)
    return max((time for time, _ in parts), key=lambda time: time.value), energy
