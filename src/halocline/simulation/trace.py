"""A timeline as Chrome trace events, for Perfetto and chrome://tracing: a process per rank, its computation and its
communication on threads of their own, and an arrow for every message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from halocline.schedule.instruction import COMPUTE, RECEIVE, SEND, STEP
from halocline.simulation.event import Event

_COMPUTE_THREAD = 0
_FIRST_COMMUNICATION_THREAD = 1


def chrome_trace(events: Iterable[Event], *, unit: float = 1e6) -> dict[str, Any]:
    """The trace as JSON-ready data; `unit` is how many microseconds one unit of time lasts (seconds by default)."""
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
        row = {"pid": rank, "tid": thread, "ts": start * unit, "cat": instruction.kind}
        rows.append(
            {
                **row,
                "ph": "X",
                "name": str(instruction),
                "dur": (end - start) * unit,
                "args": {**args, "wait": wait * unit},
            }
        )
        if instruction.kind in (SEND, RECEIVE):
            ends = (rank, instruction.peer) if instruction.kind == SEND else (instruction.peer, rank)
            number = flows.setdefault((*instruction[1:5], *ends), len(flows))
            arrow = {**row, "cat": "message", "name": instruction.what, "id": number}
            rows.append(
                {**arrow, "ph": "s"} if instruction.kind == SEND else {**arrow, "ph": "f", "bp": "e", "ts": end * unit}
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
