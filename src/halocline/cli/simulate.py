"""`halocline simulate`: what a schedule would cost, as a drawing in the terminal, JSON, a trace or a picture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from halocline.cli.cost_options import CostOptions, costs_from_options
from halocline.cli.plan_options import PlanOptions, plan_from_options
from halocline.plan.plan import Plan
from halocline.schedule import Schedule, generate
from halocline.simulation import Costs, Simulation, simulate


@dataclass(frozen=True)
class Options(CostOptions, PlanOptions):
    """What a schedule would cost: its time, its bubble, and the activations and memory of every rank."""

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
    plan = plan_from_options(options)
    costs = costs_from_options(options)
    schedule = _scheduled(plan, costs)
    drawn = not options.json or options.trace is not None or options.svg is not None
    result = simulate(schedule, costs, events=drawn)
    written = _write(options, schedule, result)
    if options.json:
        print(json.dumps(_summary(schedule, result)))
        return 0

    # rich takes a tenth of a second to load, which JSON need not pay.
    from rich.console import Console

    from halocline.simulation.terminal import draw_terminal

    console = Console(width=options.width, highlight=False)
    console.print(f"[bold]{_title(plan)}[/bold]")
    console.print(draw_terminal(result.events, width=console.width), soft_wrap=True)
    console.print(_note(schedule, result), soft_wrap=True)
    for path in written:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    return 0


def _scheduled(plan: Plan, costs: Costs) -> Schedule:
    """The plan's schedule. Capped admits work by its costs, so it is told them."""
    rows = costs.per_stage(plan)
    return generate(
        plan,
        weights=[row.activation_bytes for row in rows] if any(row.activation_bytes for row in rows) else None,
        forward=[row.forward for row in rows],
        backward=[row.backward + (row.recompute if s.recompute else 0) for row, s in zip(rows, plan.stages)],
    )


def _write(options: Options, schedule: Schedule, result: Simulation) -> list[str]:
    written = []
    if options.trace is not None:
        from halocline.simulation.trace import chrome_trace

        Path(options.trace).write_text(json.dumps(chrome_trace(result.events)), encoding="utf-8")
        written.append(options.trace)
    if options.svg is not None:
        from halocline.simulation.svg import draw_svg

        picture = draw_svg(result.events, title=_title(schedule.plan), note=_note(schedule, result))
        Path(options.svg).write_text(picture, encoding="utf-8")
        written.append(options.svg)
    return written


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
