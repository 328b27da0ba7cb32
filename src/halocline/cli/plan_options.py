"""The options that describe a plan in a few words, for verbs that care about the schedule and not about the model; or a
whole plan from a file.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halocline.plan.plan import Plan
from halocline.plan.require import require_degree

_MOST_WORK = 4_000_000
"""Stages x microbatches: beyond it a schedule fills the memory before anyone could read it."""

_LONG_WORK = 100_000
"""Stages x microbatches: beyond it, it takes a minute or more."""
_OWN_NAMES = {"num_spatial_parts": "tiles", "spatial_size": "tiled stages", "local_DP": "lanes", "tp": "tensor"}
"""What now-dl's and Merak's flags are called here, for their errors."""


@dataclass(frozen=True)
class PlanOptions:
    """A plan in a few words."""

    plan: str | None = None
    """A plan.toml that says everything about the plan; other options may repeat it but not contradict it."""
    schedule: str | None = None
    """layer, gpipe, 1f1b, interleaved, zb-h1, early-recompute-1f1b, gems, chimera or capped (left out: 1f1b)."""
    stages: int | None = None
    """Stages in a pipe (left out: 4). With --chunks each is cut into that many, which share its ranks."""
    microbatches: int | None = None
    """Microbatches of one step, over both pipes (left out: 8)."""
    pipes: int | None = None
    """1, or 2 for a mirrored second pipe (left out: 2 for gems and chimera, else 1)."""
    replicas: int | None = None
    """Data-parallel copies of everything (left out: 1)."""
    chunks: int | None = None
    """interleaved: stages per rank (left out: 2)."""
    passes: int | None = None
    """gems: passes of one step, an even number (left out: one per microbatch)."""
    cap: float | None = None
    """capped: the most activations a rank may hold, in microbatches of one stage, or in bytes where --activation-bytes
    is given (left out: as many as there are stages)."""
    tiles: str | None = None
    """Tiles of the first stages, e.g. 4 for a first stage on 2x2 tiles, or 4,2 for two tiled stages."""
    lanes: int | None = None
    """Ranks that share each stage without tiles, splitting its samples (left out: 1)."""
    tensor: int | None = None
    """Ranks that share each weight matrix (left out: 1)."""
    recompute: str | None = None
    """none, all or but-last: which stages keep only their input (left out: none; but-last for early-recompute-1f1b)."""


def plan_from_options(options: PlanOptions) -> Plan:
    if options.plan is not None:
        plan = load_plan(options.plan)
        _require_agreement(options, plan)
    else:
        plan = _plan_in_words(options)
    _require_work(len(plan.stages), plan.microbatches)
    _tell_long_work(plan)
    return plan


def load_plan(path: str) -> Plan:
    """A plan from a file, with an error that names it."""
    try:
        return Plan.load(Path(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text (byte {error.start}): give a plan.toml") from error


def _plan_in_words(options: PlanOptions) -> Plan:
    stages = 4 if options.stages is None else options.stages
    microbatches = 8 if options.microbatches is None else options.microbatches
    require_degree("stages", stages)
    require_degree("microbatches", microbatches)
    _require_work(stages, microbatches)
    fields: dict[str, Any] = {
        "pipes": options.pipes,
        "replicas": options.replicas,
        "chunks": options.chunks,
        "passes": options.passes,
        "cap": options.cap,
        "recompute": options.recompute,
        "num_spatial_parts": options.tiles,
        "local_DP": options.lanes,
        "tp": options.tensor,
    }
    if options.tiles is not None:
        fields["spatial_size"] = len(options.tiles.split(","))
    try:
        return Plan.from_flags(
            schedule=options.schedule or "1f1b",
            split_size=stages,
            microbatches=microbatches,
            **{name: value for name, value in fields.items() if value is not None},
        )
    except ValueError as error:
        said = str(error)
        for flag, option in _OWN_NAMES.items():
            said = said.replace(f"{flag} = ", f"{option} = ")
        raise ValueError(said) from error


def _require_agreement(options: PlanOptions, plan: Plan) -> None:
    says = {
        "schedule": plan.schedule,
        "stages": plan.places,
        "microbatches": plan.microbatches,
        "pipes": plan.pipes,
        "replicas": plan.replicas,
        "chunks": plan.chunks,
        "passes": plan.passes,
        "cap": plan.cap,
    }
    for name, value in says.items():
        asked = getattr(options, name)
        if asked is not None and asked != value:
            raise ValueError(
                f"--{name} {asked} contradicts {options.plan}, which has {name} = {value}: leave out --{name}, "
                f"or change the plan"
            )
    for name in ("tiles", "lanes", "tensor", "recompute"):
        asked = getattr(options, name)
        if asked is not None:
            raise ValueError(
                f"--{name} {asked} beside --plan {options.plan}, which says it per stage: leave out --{name}"
            )


def _require_work(stages: int, microbatches: int) -> None:
    if stages * microbatches > _MOST_WORK:
        raise ValueError(
            f"{stages} stages x {microbatches} microbatches = {stages * microbatches} is more than {_MOST_WORK}: "
            f"use fewer microbatches, a schedule repeats itself"
        )


def _tell_long_work(plan: Plan) -> None:
    stages, microbatches = len(plan.stages), plan.microbatches
    if stages * microbatches > _LONG_WORK:
        print(
            f"halocline: {stages} stages x {microbatches} microbatches takes a minute or more; a schedule repeats "
            f"itself, so fewer microbatches tell the same",
            file=sys.stderr,
        )
