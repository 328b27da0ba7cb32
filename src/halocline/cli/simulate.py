"""`halocline simulate`: what a schedule would cost, as a drawing in the terminal, JSON, a trace or a picture."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from halocline.cli.drawing import write_picture, write_trace
from halocline.plan.flags.reader import spelled
from halocline.plan.plan import Plan
from halocline.plan.require import require_degree
from halocline.plan.settings import PlanSettings
from halocline.schedule import Schedule
from halocline.simulation import Costs, Simulation, simulate
from halocline.simulation.costs import Amount
from halocline.simulation.simulator import scheduled

_MOST_WORK = 4_000_000
"""Stages x microbatches: beyond it a schedule fills the memory before anyone could read it."""
_LONG_WORK = 100_000
"""Stages x microbatches: beyond it, it takes a minute or more."""


@dataclass(frozen=True)
class CostOptions:
    """costs: durations in any one unit, sizes in bytes; per stage, give one number for all or 1,1,2,1"""

    forward: str = "1"
    """Time of one microbatch's forward, per stage."""
    backward: str = "2"
    """Time of the whole backward, per stage."""
    weight: str | None = None
    """Time of the backward's weight half, per stage, for zb-h1 (left out: half of the backward)."""
    recompute_time: str | None = None
    """Time to rebuild activations from a stage's input, per stage (left out: the forward's)."""
    reduce: str = "0"
    """Time to sum gradients over the ranks that share them, per stage."""
    step: float = 0.0
    """Time of the optimizer's step."""
    latency: float = 0.0
    """Time a message takes on top of its bytes / bandwidth."""
    bandwidth: float | None = None
    """Bytes per unit of time from one rank to another (left out: no limit)."""
    activation_bytes: str = "0"
    """What each rank keeps of one microbatch, per stage."""
    boundary_bytes: str = "0"
    """The whole input of a stage for one microbatch, per stage."""
    weight_bytes: str = "0"
    """Parameters, gradients and optimizer state on each rank, per stage."""


@dataclass(frozen=True)
class Options:
    """What a schedule would cost: its time, its bubble, and the activations and memory of every rank. Without
    --stages, --microbatches and --schedule these are 4, 8 and 1f1b."""

    plan: PlanSettings = field(default_factory=PlanSettings)
    costs: CostOptions = field(default_factory=CostOptions)

    json: bool = False
    """Print one JSON object instead of the drawing."""
    trace: str | None = None
    """Write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing to this file; one unit of time is a second."""
    svg: str | None = None
    """Write a picture to this file."""
    width: int | None = None
    """Columns of the drawing (left out: as wide as the terminal)."""


def run(options: Options) -> int:
    if options.width is not None and options.width < 20:
        raise ValueError(f"--width {options.width} is below 20 columns: use 20 or more")
    plan = plan_to_simulate(options.plan)
    costs = _costs(options.costs)
    schedule = scheduled(plan, costs)
    drawn = not options.json or options.trace is not None or options.svg is not None
    result = simulate(schedule, costs, events=drawn)
    written = write_trace(options.trace, result.events)
    written += write_picture(options.svg, result.events, _title(plan), _note(schedule, result))
    if options.json:
        print(json.dumps(_summary(schedule, result)))
        return 0

    # rich takes a tenth of a second to load, which JSON need not pay.
    from rich.console import Console

    from halocline.simulation.drawings import draw_terminal

    console = Console(width=options.width, highlight=False)
    console.print(f"[bold]{_title(plan)}[/bold]")
    console.print(draw_terminal(result.events, width=console.width), soft_wrap=True)
    console.print(_note(schedule, result), soft_wrap=True)
    for path in written:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    return 0


def plan_to_simulate(said: PlanSettings) -> Plan:
    """The plan that the words describe, for verbs that care about the schedule and not about the model."""
    if said.file is None:
        microbatches = 8 if said.microbatches is None else said.microbatches
        said = replace(said, schedule=said.schedule or "1f1b", microbatches=microbatches)
        _require_work(4 if said.stages is None else said.stages, microbatches)
    plan = said.plan(stages=4)
    stages, microbatches = len(plan.stages), plan.microbatches
    _require_work(stages, microbatches)
    if stages * microbatches > _LONG_WORK:
        print(
            f"halocline: {stages} stages x {microbatches} microbatches takes a minute or more; a schedule repeats "
            f"itself, so fewer microbatches tell the same",
            file=sys.stderr,
        )
    return plan


def _require_work(stages: int, microbatches: int) -> None:
    require_degree("stages", stages)
    if stages * microbatches > _MOST_WORK:
        raise ValueError(
            f"{stages} stages x {microbatches} microbatches = {stages * microbatches} is more than {_MOST_WORK}: "
            f"use fewer microbatches, a schedule repeats itself"
        )


def _costs(options: CostOptions) -> Costs:
    given: dict[str, Any] = asdict(options)
    given = {name: _amount(name, value) if isinstance(value, str) else value for name, value in given.items()}
    given["recompute"] = given.pop("recompute_time")
    given["bandwidth"] = math.inf if options.bandwidth is None else options.bandwidth
    return Costs(**given)


def _amount(name: str, text: str) -> Amount:
    numbers = []
    for word in text.split(","):
        try:
            numbers.append(float(word))
        except ValueError:
            flag = spelled(name)
            raise ValueError(
                f"{flag} = {text!r}: {word!r} is not a number: write {flag} 1, or one number per stage as 1,1,2,1"
            ) from None
    return tuple(numbers) if len(numbers) > 1 else numbers[0]


def _summary(schedule: Schedule, result: Simulation) -> dict[str, object]:
    """The numbers, with one entry per process where there are several: all replicas run alike."""
    plan = schedule.plan
    return {
        "schedule": plan.schedule,
        "stages": len(plan.stages),
        "microbatches": plan.microbatches,
        "pipes": plan.pipes,
        "replicas": plan.replicas,
        "processes": plan.world_size,
        "makespan": result.makespan,
        "bubble": result.bubble,
        "busy": list(result.busy * plan.replicas),
        "peak_activations": list(result.peak_activations * plan.replicas),
        "peak_inputs": list(result.peak_inputs * plan.replicas),
        "peak_memory": list(result.peak_memory * plan.replicas),
        "instructions": schedule.instruction_count,
    }


def _title(plan: Plan) -> str:
    parts = [plan.schedule, _count(plan.places, "stage") + (f" x {plan.chunks} chunks" if plan.chunks > 1 else "")]
    parts.append(_count(plan.microbatches, "microbatch"))
    if plan.pipes > 1:
        parts.append(f"{plan.pipes} pipes")
    parts.append(_count(plan.world_size, "process"))
    return ", ".join(parts)


def _note(schedule: Schedule, result: Simulation) -> str:
    parts = [
        f"makespan {result.makespan:g}",
        f"bubble {result.bubble:.1%}",
        f"a rank holds at most {_count(max(result.peak_activations), 'activation')}",
    ]
    if any(result.peak_inputs):
        parts[-1] += f" and {_count(max(result.peak_inputs), 'input')}"
    if any(result.peak_memory):
        parts[-1] += f", {_bytes(max(result.peak_memory))}"
    parts.append(_count(schedule.instruction_count, "instruction"))
    return " · ".join(parts)


def _count(number: int, noun: str) -> str:
    ending = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number} {noun}" + ("" if number == 1 else ending)


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
