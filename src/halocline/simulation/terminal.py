"""A timeline in the terminal: a line per rank, as many columns as there is room for. Letters say the kind (small in the
second pipe) and numbers the microbatch, so it reads without colours too.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

from halocline.schedule.instruction import COMPUTE, Instruction
from halocline.simulation.event import Event
from halocline.simulation.palette import legend, paint

_MOST_COLUMNS_PER_OPERATION = 4
_IDLE = "·"


def draw_terminal(events: Sequence[Event], *, width: int, rows: int = 64) -> Text:
    """The timeline and its legend, at most `width` columns wide and `rows` ranks high."""
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
    for name, colours in legend({(event.instruction.kind, event.instruction.pipe) for event in computed}):
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
        colours = paint(event.instruction)
        style = Style(color=colours.ink, bgcolor=colours.fill)
        drawing.append(_label(event.instruction, end - start), style=style)
        column = end
    drawing.append(_IDLE * (columns - column), style="dim")


def _label(instruction: Instruction, width: int) -> str:
    """The letter and the microbatch where both fit, else the letter alone."""
    letter = paint(instruction).letter
    full = f"{letter}{instruction.microbatch}"
    return (full if len(full) <= width else letter).ljust(width)
