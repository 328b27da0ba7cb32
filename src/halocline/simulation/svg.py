"""A timeline as an SVG picture: a row per rank, time to the right, colours by kind and pipe, microbatch numbers in the
boxes. It brings its own style and reads on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from halocline.schedule.instruction import COMPUTE, REDUCE, STEP
from halocline.simulation.event import Event
from halocline.simulation.palette import legend, paint

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
    """The picture of a timeline; messages are left to the trace."""
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
    for name, colours in legend(kinds):
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
    colours = paint(instruction)
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
