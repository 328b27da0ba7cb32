"""A measured timeline: what the ranks of a real run wrote, read back as the simulator's events, and what the simulator
predicts for the same schedule when it is told the measured durations. Knows files and events; nothing of how to run.

Each rank writes one file of Chrome trace events, one per line; the closing bracket is left out, as the format allows,
so a run that was killed leaves a file that this module and Perfetto read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from halocline.plan.layout import ACTIVATION
from halocline.plan.plan import Plan
from halocline.schedule.generate import generate
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    COMPUTE,
    FORWARD,
    FREE,
    RECEIVE,
    RECOMPUTE,
    REDUCE,
    SEND,
    STEP,
    Instruction,
)
from halocline.simulation.costs import Costs
from halocline.simulation.simulator import Event, Simulation, simulate

HEADER = "halocline"
"""The name of the metadata event that opens a file."""
_THREADS = {SEND: 1, FREE: 1, RECEIVE: 2, REDUCE: 3}

Steps = dict[int, list[Event]]


# -- one rank's file -----------------------------------------------------------------------------------------------


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.trace.json"


def header(plan: Plan, rank: int, clock: float) -> str:
    """The first lines of a rank's file; `clock` is the time of day, in seconds, at which its times begin."""
    row = {"ph": "M", "pid": rank, "name": HEADER, "args": {"rank": rank, "clock": clock, "plan": plan.to_toml()}}
    names = [{"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}]
    for thread, name in enumerate(("compute", "send", "receive", "reduce")):
        names.append({"ph": "M", "pid": rank, "tid": thread, "name": "thread_name", "args": {"name": name}})
    return "[\n" + "".join(f"{json.dumps(entry)},\n" for entry in (row, *names))


def line(event: Event, step: int) -> str:
    """An event, in seconds, as a line of a rank's file. Formatted by hand: a run in progress pays for it."""
    rank, instruction, start, end, wait = event
    kind, pipe, stage, microbatch, what, peer = instruction
    return (
        f'{{"ph":"X","pid":{rank},"tid":{_THREADS.get(kind, 0)},"ts":{start * 1e6:.3f},"dur":{(end - start) * 1e6:.3f},'
        f'"cat":"{kind}","name":"{instruction}","args":{{"pipe":{pipe},"stage":{stage},"microbatch":{microbatch},'
        f'"what":"{what}","peer":{peer},"wait":{wait * 1e6:.3f},"step":{step}}}}},\n'
    )


def _read_file(path: Path) -> tuple[dict[str, Any], Steps]:
    head: dict[str, Any] = {}
    steps: Steps = defaultdict(list)
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(text.rstrip().rstrip(","))
        except ValueError:
            continue  # the opening bracket, or the line that a killed rank was writing
        try:
            if row["ph"] != "M":
                number, event = _read_row(row, head["clock"])
                steps[number].append(event)
            elif row["name"] == HEADER:
                head = row["args"]
        except (KeyError, TypeError):
            break  # no rank wrote this, nor what follows
    if not {"rank", "plan"} <= head.keys():
        raise ValueError(f"{path} does not begin as a rank's timeline: give the directory that Engine(timeline=) wrote")
    return head, steps


def _read_row(row: dict[str, Any], clock: float) -> tuple[int, Event]:
    args = row["args"]
    instruction = Instruction(row["cat"], args["pipe"], args["stage"], args["microbatch"], args["what"], args["peer"])
    start = clock + row["ts"] / 1e6
    return args["step"], Event(row["pid"], instruction, start, start + row["dur"] / 1e6, args["wait"] / 1e6)


# -- all ranks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankShare:
    """How one rank spent a step, in seconds (means over steps)."""

    rank: int
    busy: float
    """Computing."""
    waiting: float
    """Standing idle for a message, for its team, for a sent buffer or for a reduction."""
    communication: float
    """Packing and starting messages."""
    reduction: float
    """Summing gradients, beside whatever else it did."""


@dataclass(frozen=True)
class MeasuredRun:
    """The timeline of a run: the events of each complete step, in seconds from the step's first event."""

    plan: Plan
    steps: dict[int, tuple[Event, ...]]
    unfinished: tuple[int, ...] = ()
    """Steps that not every rank has finished; they are left out."""

    @property
    def counted(self) -> list[tuple[Event, ...]]:
        """The steps that figures are made of: all but the first, which also warms up, unless it is the only one."""
        found = [self.steps[number] for number in sorted(self.steps)]
        return found[1:] if len(found) > 1 else found

    @property
    def makespan(self) -> float:
        return fmean(_span(events) for events in self.counted)

    @property
    def bubble(self) -> float:
        """The share of the makespan in which the average rank does not compute."""
        return 1 - fmean(share.busy for share in self.shares()) / self.makespan

    def shares(self) -> list[RankShare]:
        columns = {FREE: 1, SEND: 2, REDUCE: 3}
        sums = {rank: [0.0] * 4 for rank in range(self.plan.world_size)}
        for event in chain(*self.counted):
            row, length = sums[event.rank], event.end - event.start
            kind = event.instruction.kind
            if kind in COMPUTE or kind == STEP:
                row[0] += length if kind in COMPUTE else 0.0
                row[1] += event.wait
            elif kind in columns:
                row[columns[kind]] += length
        count = len(self.counted)
        return [RankShare(rank, *(value / count for value in row)) for rank, row in sums.items()]

    def costs(self) -> Costs:
        """The measured mean duration of each stage and kind, as the simulator takes them."""
        times: dict[tuple[str, int], list[float]] = defaultdict(list)
        for event in chain(*self.counted):
            times[event.instruction.kind, event.instruction.stage].append(event.end - event.start)

        def mean(kind: str, stage: int) -> float:
            return fmean(found) if (found := times.get((kind, stage))) else 0.0

        forward, backward, weight, recompute, reduce = [], [], [], [], []
        for number, stage in enumerate(self.plan.stages):
            forward.append(mean(FORWARD, number))
            whole = mean(BACKWARD, number) or mean(BACKWARD_INPUT, number) + mean(BACKWARD_WEIGHT, number)
            # A backward that rebuilds its activations took a forward's time for it, at most all of its own.
            apart = mean(RECOMPUTE, number)
            again = apart or min(forward[-1], whole)
            recompute.append(again)
            backward.append(whole - again if stage.recompute and not apart else whole)
            weight.append(min(mean(BACKWARD_WEIGHT, number), backward[-1]))
            reduce.append(mean(REDUCE, number))
        return Costs(
            forward=forward,
            backward=backward,
            weight=weight if any(weight) else None,
            recompute=recompute,
            reduce=reduce,
            step=mean(STEP, 0),
            latency=self._latency(),
        )

    def _latency(self) -> float:
        """From the end of what made a message to its arrival, where somebody stood waiting for it."""
        n = self.plan.ranks_per_replica
        found = []
        for events in self.counted:
            made = {(event.rank, event.instruction[:4]): event.end for event in events}
            for event in events:
                kind, pipe, stage, microbatch, what, peer = event.instruction
                if kind != RECEIVE or not event.wait:
                    continue
                source = event.rank // n * n + peer
                kinds, at = ((FORWARD,), stage) if what == ACTIVATION else ((BACKWARD, BACKWARD_INPUT), stage + 1)
                end = next((made[key] for k in kinds if (key := (source, (k, pipe, at, microbatch))) in made), None)
                if end is not None and event.end - event.wait < end:
                    found.append(max(0.0, event.end - end))
        return fmean(found) if found else 0.0

    def predicted(self) -> Simulation:
        """What the simulator says of the same schedule with the measured durations."""
        return simulate(generate(self.plan), self.costs(), events=True)


def read(directory: str | Path) -> MeasuredRun:
    paths = sorted(Path(directory).glob("rank-*.trace.json"))
    if not paths:
        where = "holds no rank-*.trace.json" if Path(directory).is_dir() else "is no directory"
        raise ValueError(f"{directory} {where}: give the directory that Engine(timeline=) wrote")
    plan: str | None = None
    merged: Steps = defaultdict(list)
    finished: dict[int, set[int]] = defaultdict(set)
    read_from: dict[int, Path] = {}
    for path in paths:
        head, steps = _read_file(path)
        if read_from.setdefault(head["rank"], path) != path:
            raise ValueError(
                f"{path} and {read_from[head['rank']]} are both of rank {head['rank']}: take one of them away"
            )
        if plan is not None and head["plan"] != plan:
            raise ValueError(f"{path} comes from another plan than {paths[0]}: give each run a directory of its own")
        plan = head["plan"]
        for number, events in steps.items():
            merged[number] += events
            if any(event.instruction.kind == STEP for event in events):
                finished[number].add(head["rank"])
    assert plan is not None
    made = Plan.from_toml(plan)
    whole = {number for number, ranks in finished.items() if len(ranks) == made.world_size}
    if not whole:
        raise ValueError(
            f"{directory} has no step that all {made.world_size} ranks finished (it holds {len(paths)} ranks and "
            f"{len(merged)} steps begun): let the run do at least one step"
        )
    aligned = {number: _aligned(merged[number], made) for number in sorted(whole)}
    return MeasuredRun(made, aligned, tuple(sorted(set(merged) - whole)))


def _span(events: Sequence[Event]) -> float:
    return max(event.end for event in events) - min(event.start - _idle(event) for event in events)


def _idle(event: Event) -> float:
    return event.wait if event.instruction.kind in COMPUTE else 0.0


def _aligned(events: Iterable[Event], plan: Plan) -> tuple[Event, ...]:
    """Times from the step's beginning; an operation or reduction of several ranks begins when the last one comes."""
    events = list(events)
    zero = min(event.start - _idle(event) for event in events)
    begins: dict[tuple[object, ...], float] = defaultdict(float)

    def key(event: Event) -> tuple[object, ...]:
        everywhere = event.instruction.kind == REDUCE
        return event.instruction, None if everywhere else event.rank // plan.ranks_per_replica

    for event in events:
        if event.instruction.kind in COMPUTE or event.instruction.kind == REDUCE:
            begins[key(event)] = max(begins[key(event)], event.start)
    aligned = []
    for event in events:
        start = min(begins.get(key(event), event.start), event.end)
        wait = event.wait + start - event.start
        aligned.append(event._replace(start=start - zero, end=event.end - zero, wait=wait))
    return tuple(sorted(aligned, key=lambda event: (event.start, event.end)))
