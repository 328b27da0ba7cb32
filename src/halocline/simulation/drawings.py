"""A timeline drawn, simulated or measured: in the terminal, as an SVG picture, and as a trace for Perfetto."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from rich.style import Style
from rich.text import Text

from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    COMPUTE,
    FORWARD,
    RECEIVE,
    RECOMPUTE,
    REDUCE,
    SEND,
    STEP,
    Instruction,
)
from halocline.simulation.simulator import Event

# -- colours and letters -------------------------------------------------------------------------------------------


class Paint(NamedTuple):
    """How an instruction is drawn: each pipe in its own hues, a half backward lighter or darker than the whole."""

    letter: str
    fill: str
    ink: str
    """The colour of text on the fill."""


_WHITE, _BLACK = "#ffffff", "#14202b"
_LETTERS = {FORWARD: "F", RECOMPUTE: "R", BACKWARD: "B", BACKWARD_INPUT: "I", BACKWARD_WEIGHT: "W"}
_FILLS = {
    FORWARD: (("#2f77bb", _WHITE), ("#8a5cc2", _WHITE)),
    RECOMPUTE: (("#e0a030", _BLACK), ("#e0a030", _BLACK)),
    BACKWARD: (("#2b8a66", _WHITE), ("#c04a83", _WHITE)),
    BACKWARD_INPUT: (("#2b8a66", _WHITE), ("#c04a83", _WHITE)),
    BACKWARD_WEIGHT: (("#86cdb0", _BLACK), ("#eaa6c8", _BLACK)),
}
_GREY = "#8a929c"


def _paint(instruction: Instruction) -> Paint:
    """Letters are capitals in pipe 0 and small in pipe 1."""
    kind, pipe = instruction.kind, instruction.pipe
    if kind not in _FILLS:
        return Paint({REDUCE: "+", STEP: "!"}.get(kind, "-"), _GREY, _BLACK)
    fill, ink = _FILLS[kind][pipe]
    letter = _LETTERS[kind]
    return Paint(letter.lower() if pipe else letter, fill, ink)


def _legend(instructions: set[tuple[str, int]]) -> list[tuple[str, Paint]]:
    """A name and paint for each (kind, pipe) that occurs, in a fixed order."""
    entries = []
    both = len({pipe for kind, pipe in instructions if kind in _FILLS}) > 1
    for pipe in (0, 1):
        for kind in _FILLS:
            if (kind, pipe) in instructions:
                entries.append((f"{kind}, pipe {pipe}" if both else kind, _paint(Instruction(kind, pipe))))
    entries += [(kind, _paint(Instruction(kind))) for kind in (REDUCE, STEP) if (kind, 0) in instructions]
    return entries


# -- in the terminal ------------------------------------------------------------------------------------------------

_MOST_COLUMNS_PER_OPERATION = 4
_IDLE = "·"


def draw_terminal(events: Sequence[Event], *, width: int, rows: int = 64) -> Text:
    """The timeline and its legend, at most `width` columns wide and `rows` ranks high: a line per rank. Letters say the
    kind (small in the second pipe) and numbers the microbatch, so it reads without colours too."""
    computed = [event for event in events if event.instruction.kind in COMPUTE and event.end > event.start]
    ranks = 1 + max((event.rank for event in events), default=0)
    margin = len(f"rank {ranks - 1} ")
    scale = _columns_per_time(computed, max(1, width - margin))
    columns = round(max((event.end for event in computed), default=0.0) * scale)
    drawing = Text()
    lines: list[list[Event]] = [[] for _ in range(ranks)]
    for event in sorted(computed, key=lambda event: event.start):
        lines[event.rank].append(event)
    for rank, line in enumerate(lines[:rows]):
        drawing.append(f"rank {rank}".ljust(margin), style="bold")
        _draw_line(drawing, line, scale, columns)
        drawing.append("\n")
    if ranks > rows:
        drawing.append(f"... and {ranks - rows} more ranks\n", style="dim")
    for name, colours in _legend({(event.instruction.kind, event.instruction.pipe) for event in computed}):
        drawing.append(f" {colours.letter} ", style=Style(color=colours.ink, bgcolor=colours.fill))
        drawing.append(f" {name}  ")
    drawing.append(f"{_IDLE} idle", style="dim")
    return drawing


def _columns_per_time(events: Sequence[Event], width: int) -> float:
    """As many columns as fit; a whole number for the shortest operation if possible, so that nothing is skewed."""
    span = max((event.end for event in events), default=0.0)
    if not span:
        return 1.0
    shortest = min(event.end - event.start for event in events)
    whole = min(int(width / span * shortest), _MOST_COLUMNS_PER_OPERATION)
    return whole / shortest if whole else width / span


def _draw_line(drawing: Text, events: list[Event], scale: float, columns: int) -> None:
    column = 0
    for event in events:
        start, end = max(column, round(event.start * scale)), round(event.end * scale)
        # Where operations are narrower than a column, those that own none are left out.
        if end <= start:
            continue
        drawing.append(_IDLE * (start - column), style="dim")
        colours = _paint(event.instruction)
        style = Style(color=colours.ink, bgcolor=colours.fill)
        drawing.append(_label(event.instruction, end - start), style=style)
        column = end
    drawing.append(_IDLE * (columns - column), style="dim")


def _label(instruction: Instruction, width: int) -> str:
    """The letter and the microbatch where both fit, else the letter alone."""
    letter = _paint(instruction).letter
    full = f"{letter}{instruction.microbatch}"
    return (full if len(full) <= width else letter).ljust(width)


# -- as a picture ---------------------------------------------------------------------------------------------------

_LEFT, _RIGHT, _WIDTH = 70.0, 22.0, 960.0
_ROW, _GAP = 26.0, 6.0
_LETTER = 6.6
"""Width of a character of the boxes' text."""

_STYLE = """
  text { font: 11px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #24303b; }
  .title { font-size: 14px; font-weight: 600; }
  .note, .tick { fill: #5b6773; }
  .box { text-anchor: middle; dominant-baseline: central; }
  .rank { text-anchor: end; dominant-baseline: central; }
  .tick { text-anchor: middle; font-size: 10px; }
  .track { fill: #8a929c; fill-opacity: 0.13; }
  .line { stroke: #8a929c; stroke-opacity: 0.45; stroke-width: 1; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4eaf0; }
    .note, .tick { fill: #9aa7b4; }
  }
"""


def draw_svg(events: Sequence[Event], *, title: str = "", note: str = "") -> str:
    """A row per rank, time to the right, microbatch numbers in the boxes; messages are left to the trace. The picture
    brings its own style and reads on light and dark pages."""
    shown = [
        e for e in events if e.end > e.start and (e.instruction.kind in COMPUTE or e.instruction.kind in (REDUCE, STEP))
    ]
    ranks = 1 + max((event.rank for event in events), default=0)
    span = max((event.end for event in events), default=0.0) or 1.0
    scale = _WIDTH / span
    kinds = {(event.instruction.kind, event.instruction.pipe) for event in shown}
    body: list[str] = []
    y = 0.0
    for text, style in ((title, "title"), (note, "note")):
        if text:
            y += 22
            body.append(f'<text class="{style}" x="{_LEFT:g}" y="{y:g}">{escape(text)}</text>')
    y += 14
    y = _draw_legend(body, kinds, y)
    top = y
    for rank in range(ranks):
        row = top + rank * (_ROW + _GAP)
        body.append(f'<text class="rank" x="{_LEFT - 10:g}" y="{row + _ROW / 2:g}">rank {rank}</text>')
        body.append(f'<rect class="track" x="{_LEFT:g}" y="{row:g}" width="{_WIDTH:g}" height="{_ROW:g}" rx="3"/>')
    for event in shown:
        _draw_event(body, event, top + event.rank * (_ROW + _GAP), scale)
    bottom = top + ranks * (_ROW + _GAP)
    _draw_axis(body, span, scale, bottom)
    height, width = bottom + 26, _LEFT + _WIDTH + _RIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img">'
    )
    label = [f"<title>{escape(title)}</title>"] if title else []
    return "\n".join([head, *label, f"<style>{_STYLE}</style>", *body, "</svg>"]) + "\n"


def _draw_legend(body: list[str], kinds: set[tuple[str, int]], y: float) -> float:
    """Draws the legend in as many lines as it needs; returns where the rows may begin."""
    x = _LEFT
    for name, colours in _legend(kinds):
        width = 20 + _LETTER * len(name)
        if x + width > _LEFT + _WIDTH:
            x, y = _LEFT, y + 18
        body.append(f'<rect x="{x:g}" y="{y:g}" width="12" height="12" rx="2" fill="{colours.fill}"/>')
        body.append(f'<text class="note" x="{x + 17:g}" y="{y + 10:g}">{escape(name)}</text>')
        x += width + 12
    return y + 24


def _draw_event(body: list[str], event: Event, row: float, scale: float) -> None:
    instruction = event.instruction
    x, width = _LEFT + event.start * scale, (event.end - event.start) * scale
    colours = _paint(instruction)
    if instruction.kind == REDUCE:
        # Reductions run beside the computation: a strip under it.
        body.append(
            f'<rect x="{x:.2f}" y="{row + _ROW:g}" width="{width:.2f}" height="4" rx="1" fill="{colours.fill}">'
            f"<title>{instruction}</title></rect>"
        )
        return
    # Neighbours stay apart by a hair, as long as there is room for one.
    inset = min(0.5, width / 8)
    body.append(
        f'<rect x="{x + inset:.2f}" y="{row:g}" width="{width - 2 * inset:.2f}" height="{_ROW:g}" '
        f'rx="{min(3.0, width / 4):.1f}" fill="{colours.fill}"><title>{instruction}: {event.start:g} to {event.end:g}'
        f"</title></rect>"
    )
    label = str(instruction.microbatch) if instruction.microbatch >= 0 else ""
    if label and _LETTER * len(label) + 3 <= width:
        # An inline style, because the sheet's colour of text would win over an attribute.
        middle = f'x="{x + width / 2:.2f}" y="{row + _ROW / 2:g}"'
        body.append(f'<text class="box" {middle} style="fill:{colours.ink}">{label}</text>')


def _draw_axis(body: list[str], span: float, scale: float, y: float) -> None:
    step = _round_step(span / 12)
    body.append(f'<line class="line" x1="{_LEFT:g}" y1="{y:g}" x2="{_LEFT + _WIDTH:g}" y2="{y:g}"/>')
    for count in range(int(span / step + 1e-9) + 1):
        x = _LEFT + count * step * scale
        body.append(f'<line class="line" x1="{x:.2f}" y1="{y:g}" x2="{x:.2f}" y2="{y + 4:g}"/>')
        body.append(f'<text class="tick" x="{x:.2f}" y="{y + 16:g}">{count * step:g}</text>')


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, ... (times a power of ten) that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))


# -- as a trace -----------------------------------------------------------------------------------------------------

_COMPUTE_THREAD = 0
_FIRST_COMMUNICATION_THREAD = 1
_MICROSECONDS = 1e6


def chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """Chrome trace events as JSON-ready data: a process per rank, its computation and its communication on threads of
    their own, and an arrow for every message. A unit of time is shown as a second."""
    ordered = sorted(events, key=lambda event: (event.start, event.end))
    rows: list[dict[str, Any]] = []
    threads: dict[int, list[float]] = {event.rank: [] for event in ordered}
    """Per rank, when each communication thread is free again."""
    flows: dict[tuple[object, ...], int] = {}
    for event in ordered:
        rank, instruction, start, end, wait = event
        if instruction.kind in COMPUTE or instruction.kind == STEP:
            thread = _COMPUTE_THREAD
        else:
            thread = _FIRST_COMMUNICATION_THREAD + _free_thread(threads[rank], start, end)
        args = {"pipe": instruction.pipe, "stage": instruction.stage}
        if instruction.microbatch >= 0:
            args["microbatch"] = instruction.microbatch
        row = {"pid": rank, "tid": thread, "ts": start * _MICROSECONDS, "cat": instruction.kind}
        rows.append(
            {
                **row,
                "ph": "X",
                "name": str(instruction),
                "dur": (end - start) * _MICROSECONDS,
                "args": {**args, "wait": wait * _MICROSECONDS},
            }
        )
        if instruction.kind in (SEND, RECEIVE):
            ends = (rank, instruction.peer) if instruction.kind == SEND else (instruction.peer, rank)
            number = flows.setdefault((*instruction[1:5], *ends), len(flows))
            arrow = {**row, "cat": "message", "name": instruction.what, "id": number}
            rows.append(
                {**arrow, "ph": "s"}
                if instruction.kind == SEND
                else {**arrow, "ph": "f", "bp": "e", "ts": end * _MICROSECONDS}
            )
    rows.sort(key=lambda row: row["ts"])  # an arrow's head comes after what began while it flew
    for rank, free in sorted(threads.items()):
        rows += _names(rank, len(free))
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def _free_thread(free: list[float], start: float, end: float) -> int:
    """The first thread on which nothing overlaps: viewers cannot draw slices that cross."""
    for number, until in enumerate(free):
        if until <= start:
            free[number] = end
            return number
    free.append(end)
    return len(free) - 1


def _names(rank: int, communication: int) -> list[dict[str, Any]]:
    names = {_COMPUTE_THREAD: "compute"}
    for number in range(communication):
        names[_FIRST_COMMUNICATION_THREAD + number] = "communication" if number == 0 else f"communication {number + 1}"
    rows: list[dict[str, Any]] = [{"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}]
    rows.append({"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}})
    for thread, name in names.items():
        rows.append({"ph": "M", "pid": rank, "tid": thread, "name": "thread_name", "args": {"name": name}})
        rows.append(
            {"ph": "M", "pid": rank, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}
        )
    return rows
