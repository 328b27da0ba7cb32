"""`halocline timeline`: what the ranks of a run did when, beside what the simulator predicts for the same schedule."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from halocline.cli.drawing import table_of, write_picture, write_trace
from halocline.runtime.measured import MeasuredRun, read
from halocline.simulation.simulator import Event, Simulation


@dataclass(frozen=True)
class Options:
    """How each rank of a run spent its time, from the directory that Engine(timeline=DIR) wrote, and the measured
    bubble beside the simulator's for the same schedule with the measured durations."""

    directory: str = ""
    """Where the ranks' files lie. May be given as a plain word."""
    json: bool = False
    """Print one JSON object."""
    trace: str | None = None
    """Write all ranks and steps as one trace for Perfetto (ui.perfetto.dev) or chrome://tracing to this file."""
    svg: str | None = None
    """Write a picture of the last step to this file."""
    width: int | None = None
    """Columns of the drawing (left out: as wide as the terminal)."""


def run(options: Options) -> int:
    if not options.directory:
        raise ValueError("no directory to read: write halocline timeline DIR")
    measured = read(options.directory)
    predicted = measured.predicted()
    last = measured.steps[max(measured.steps)]
    written = _write(options, measured, last)
    facts = _facts(measured, predicted)
    if options.json:
        print(json.dumps(facts))
        return 0
    _draw(options, measured, facts, last)
    for path in written:
        print(f"wrote {path}")
    return 0


def _facts(measured: MeasuredRun, predicted: Simulation) -> dict[str, Any]:
    makespan = measured.makespan
    return {
        "schedule": measured.plan.schedule,
        "processes": measured.plan.world_size,
        "steps": len(measured.steps),
        "counted": len(measured.counted),
        "unfinished": list(measured.unfinished),
        "makespan": makespan,
        "bubble": measured.bubble,
        "predicted_makespan": predicted.makespan,
        "predicted_bubble": predicted.bubble,
        "ranks": [
            {
                "rank": share.rank,
                "busy": share.busy,
                "waiting": share.waiting,
                "communication": share.communication,
                "reduction": share.reduction,
            }
            for share in measured.shares()
        ],
    }


def _write(options: Options, measured: MeasuredRun, last: tuple[Event, ...]) -> list[str]:
    milliseconds = [event._replace(start=event.start * 1e3, end=event.end * 1e3) for event in last]
    title = f"{measured.plan.schedule}, measured, in milliseconds"
    every = [] if options.trace is None else _one_after_the_other(measured)
    return [*write_trace(options.trace, every), *write_picture(options.svg, milliseconds, title)]


def _one_after_the_other(measured: MeasuredRun) -> list[Event]:
    """All steps on one clock; what lay between them is left out."""
    events: list[Event] = []
    begin = 0.0
    for number in sorted(measured.steps):
        step = measured.steps[number]
        events += [event._replace(start=event.start + begin, end=event.end + begin) for event in step]
        begin = max(event.end for event in events)
    return events


def _draw(options: Options, measured: MeasuredRun, facts: dict[str, Any], last: tuple[Event, ...]) -> None:
    from halocline.simulation.drawings import draw_terminal

    names = ("rank", "busy", "waiting", "communication", "reducing (beside)")
    console, table = table_of(*names, width=options.width)
    steps = f"{facts['counted']} of {facts['steps']} steps counted"
    console.print(f"[bold]{facts['schedule']}, {facts['processes']} processes, {steps}[/bold]")
    console.print(draw_terminal(last, width=console.width), soft_wrap=True)
    for row in facts["ranks"]:
        shares = (row[key] / facts["makespan"] for key in ("busy", "waiting", "communication", "reduction"))
        table.add_row(str(row["rank"]), *(f"{share:.1%}" for share in shares))
    console.print(table)
    console.print(
        f"step   measured {facts['makespan'] * 1e3:.2f} ms, simulated {facts['predicted_makespan'] * 1e3:.2f} ms\n"
        f"bubble measured {facts['bubble']:.1%}, simulated {facts['predicted_bubble']:.1%}"
    )
    if facts["unfinished"]:
        console.print(f"left out: steps that not every rank finished ({', '.join(map(str, facts['unfinished']))})")
