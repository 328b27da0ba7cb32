"""Tables on the terminal, and drawings in files. rich takes a tenth of a second to load, which JSON need not pay."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from halocline.simulation.drawings import Event

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def table_of(
    *columns: str, left: Collection[str] = (), wrap: bool = True, width: int | None = None, least: int = 0
) -> tuple[Console, Table]:
    """A console and an empty table, whose columns stand right but for those to the `left`. What is no terminal is at
    `least` so many columns wide."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(width=width, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, least)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=not wrap)
    return console, table


def write_trace(path: str | None, events: Sequence[Event]) -> list[str]:
    """A trace for Perfetto, where a path is given; what was written."""
    if path is None:
        return []
    from halocline.simulation.drawings import chrome_trace

    Path(path).write_text(json.dumps(chrome_trace(events)), encoding="utf-8")
    return [path]


def write_picture(path: str | None, events: Sequence[Event], title: str, note: str = "") -> list[str]:
    """A picture, where a path is given; what was written."""
    if path is None:
        return []
    from halocline.simulation.drawings import draw_svg

    Path(path).write_text(draw_svg(events, title=title, note=note), encoding="utf-8")
    return [path]
