"""The frontier as an SVG picture: energy over iteration time, with the plans, the ends, the least energy and the point
where every clock is at its maximum. It brings its own style and reads on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import Frontier

_WIDTH, _HEIGHT = 720.0, 416.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 24.0, 80.0, 48.0
_LETTERS = 96
"""What fits in a line."""

_STYLE = """
  text { font: 12px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #24303b; }
  .title { font-size: 14px; font-weight: 600; }
  .note, .tick { fill: #5b6773; }
  .line { stroke: #8a929c; stroke-opacity: 0.35; stroke-width: 1; }
  .curve { fill: none; stroke: #1f77b4; stroke-width: 2; stroke-linejoin: round; }
  .plan { fill: #e07b39; fill-opacity: 0.7; }
  .mark { fill: #1f77b4; }
  .baseline { fill: #c0392b; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4eaf0; }
    .note, .tick { fill: #9aa7b4; }
  }
"""


class _Scale:
    """Seconds and joules to places on the picture."""

    def __init__(self, times: Sequence[float], energies: Sequence[float]) -> None:
        self.times = _range(times)
        self.energies = _range(energies)

    def x(self, time: float) -> float:
        low, high = self.times
        return _LEFT + (time - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, energy: float) -> float:
        low, high = self.energies
        return _HEIGHT - _BOTTOM - (energy - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def draw_frontier(frontier: Frontier, plans: Sequence[FrequencyPlan] = (), *, title: str = "") -> str:
    """The picture. `plans` are drawn as dots at their real times."""
    highest = frontier.all_max
    times = [point.time for point in frontier.points] + [plan.time for plan in plans] + [highest.time]
    energies = [point.energy for point in frontier.points] + [plan.energy for plan in plans] + [highest.energy]
    scale = _Scale(times, energies)
    note = frontier.note if len(frontier.note) <= _LETTERS else f"{frontier.note[: _LETTERS - 3]}..."
    body = [
        f'<text class="title" x="{_LEFT:g}" y="24">{escape(title)}</text>',
        f'<text class="note" x="{_LEFT:g}" y="44">{escape(_note(frontier))}</text>',
        f'<text class="note" x="{_LEFT:g}" y="62">{escape(note)}</text>',
        *_axes(scale),
    ]
    if len(frontier.points) > 1:
        line = " ".join(f"{scale.x(time):.2f},{scale.y(energy):.2f}" for time, energy in frontier.points)
        body.append(f'<polyline class="curve" points="{line}"/>')
    body += [
        f'<circle class="plan" cx="{scale.x(plan.time):.2f}" cy="{scale.y(plan.energy):.2f}" r="2">'
        f"<title>{plan.time:.6g} s, {plan.energy:.6g} J</title></circle>"
        for plan in plans
    ]
    marks = [(*frontier.points[0], "T_min"), (*frontier.points[-1], "T*"), (*frontier.least, "least energy")]
    for time, energy, name in marks:
        body += _mark(scale, time, energy, name, "mark")
    body += _mark(scale, highest.time, highest.energy, "all clocks at maximum", "baseline")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" width="{_WIDTH:g}" '
        f'height="{_HEIGHT:g}" role="img">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", *body, "</svg>"]) + "\n"


def _note(frontier: Frontier) -> str:
    saved = 1 - frontier.least.energy / frontier.all_max.energy if frontier.all_max.energy else 0.0
    return f"{len(frontier.points)} points · least energy {saved:.1%} below maximum clocks"


def _axes(scale: _Scale) -> list[str]:
    body = []
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for time in _ticks(*scale.times):
        x = scale.x(time)
        body.append(f'<line class="line" x1="{x:.2f}" y1="{_TOP:g}" x2="{x:.2f}" y2="{bottom:g}"/>')
        body.append(f'<text class="tick" text-anchor="middle" x="{x:.2f}" y="{bottom + 16:g}">{time:g}</text>')
    for energy in _ticks(*scale.energies):
        y = scale.y(energy)
        body.append(f'<line class="line" x1="{_LEFT:g}" y1="{y:.2f}" x2="{right:g}" y2="{y:.2f}"/>')
        body.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 8:g}" y="{y + 4:.2f}">{energy:g}</text>')
    middle = (_LEFT + right) / 2
    body.append(f'<text class="note" text-anchor="middle" x="{middle:g}" y="{_HEIGHT - 8:g}">iteration time, s</text>')
    turned = f"translate(16 {(_TOP + bottom) / 2:g}) rotate(-90)"
    body.append(f'<text class="note" text-anchor="middle" transform="{turned}">energy per iteration, J</text>')
    return body


def _mark(scale: _Scale, time: float, energy: float, name: str, style: str) -> list[str]:
    x, y = scale.x(time), scale.y(energy)
    anchor, shift = ("end", -8) if x > _WIDTH * 0.75 else ("start", 8)
    return [
        f'<circle class="{style}" cx="{x:.2f}" cy="{y:.2f}" r="4"><title>{time:.6g} s, {energy:.6g} J</title></circle>',
        f'<text x="{x + shift:.2f}" y="{y - 8:.2f}" text-anchor="{anchor}">{escape(name)}</text>',
    ]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From the least to the most, with a little air; never empty."""
    low, high = min(values), max(values)
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - air, high + air


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two values."""
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= (high - low) / 7)
    return [round(step * number, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
