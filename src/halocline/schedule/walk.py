"""Walking a schedule: the events in an order in which they can happen if every send blocks until its receive and every
team meets for every operation. The checker, the simulator and the energy graph all walk with this.
"""

from __future__ import annotations

from collections.abc import Iterator

from halocline.schedule.instruction import COMPUTE, RECEIVE, REDUCE, SEND, Instruction, Schedule


class ScheduleError(ValueError):
    """A schedule that cannot be run, or would give wrong results; the message names rank and instruction."""


Meeting = tuple[Instruction, tuple[int, ...]]
"""An instruction and the ranks that take part; a message is its send, with (source, target)."""


def walk(schedule: Schedule) -> Iterator[Meeting]:
    """Yields every event once; raises ScheduleError where the ranks wait for each other for ever."""
    layout, ranks = schedule.layout, schedule.ranks
    position = [0] * len(ranks)
    meeting: dict[tuple[object, ...], list[int]] = {}
    members: dict[tuple[object, ...], tuple[int, ...]] = {}
    for pipe in range(schedule.plan.pipes):
        for stage in range(len(schedule.plan.stages)):
            members[pipe, stage] = team = layout.team(pipe, stage)
            members[REDUCE, stage] = tuple(sorted({*members.get((REDUCE, stage), ()), *team}))
    ready = list(reversed(range(len(ranks))))
    while ready:
        rank = ready.pop()
        row = ranks[rank]
        while position[rank] < len(row):
            instruction = row[position[rank]]
            kind = instruction.kind
            if kind in COMPUTE:
                team = members[instruction.pipe, instruction.stage]
                key: tuple[object, ...] = instruction
            elif kind == SEND or kind == RECEIVE:
                _, pipe, stage, microbatch, what, peer = instruction
                source, target = (rank, peer) if kind == SEND else (peer, rank)
                team = (source, target)
                key = (pipe, stage, microbatch, what, source, target)
            elif kind == REDUCE:
                team = members[REDUCE, instruction.stage]
                key = instruction
            else:
                position[rank] += 1
                yield instruction, (rank,)
                continue
            if len(team) > 1:
                here = meeting.setdefault(key, [])
                here.append(rank)
                if len(here) < len(team):
                    break
                del meeting[key]
                for other in team:
                    position[other] += 1
                    if other != rank:
                        ready.append(other)
                if kind == RECEIVE:
                    instruction = instruction._replace(kind=SEND, peer=rank)
            else:
                position[rank] += 1
            yield instruction, team
    stuck = [rank for rank, row in enumerate(ranks) if position[rank] < len(row)]
    if stuck:
        raise ScheduleError(_explain(schedule, position, stuck[0]))


def _explain(schedule: Schedule, position: list[int], rank: int) -> str:
    """Follows who waits for whom from `rank` until a rank comes twice."""
    path: list[int] = []
    while rank not in path:
        path.append(rank)
        waited = _waits_for(schedule, position, rank)
        if waited is None:
            break
        rank = waited
    lines = []
    for at, after in zip(path, [*path[1:], rank]):
        row = schedule.ranks[at]
        if position[at] == len(row):
            lines.append(f"rank {at} is done")
        else:
            lines.append(f"rank {at} waits at instruction {position[at]} ({row[position[at]]}) for rank {after}")
    return "deadlock: " + "; ".join(lines)


def _waits_for(schedule: Schedule, position: list[int], rank: int) -> int | None:
    """The first rank that `rank`'s instruction needs and that stands elsewhere."""
    row = schedule.ranks[rank]
    if position[rank] == len(row):
        return None
    instruction = row[position[rank]]
    if instruction.kind in (SEND, RECEIVE):
        return instruction.peer
    pipes = range(schedule.plan.pipes) if instruction.kind == REDUCE else [instruction.pipe]
    for pipe in pipes:
        for other in schedule.layout.team(pipe, instruction.stage):
            theirs = schedule.ranks[other]
            if position[other] == len(theirs) or theirs[position[other]] != instruction:
                return other
    return None
