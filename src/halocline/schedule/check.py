"""The checker: proves that a schedule computes everything once, in an order that data allows, and cannot deadlock.

It proves, and raises ScheduleError naming rank and instruction otherwise:
1. complete: every rank does each forward, backward and message of its roles exactly once, and nothing else;
2. ordered: on each rank every tensor is made before it is used, used before it is freed, and freed once;
3. agreed: for each pair of ranks both sides list the messages in the same order;
4. live: no deadlock, even if every send blocks until its receive and every team meets for every operation;
5. reduced: each shared stage once, after its last backward; the step once, at the end.
"""

from __future__ import annotations

from halocline.plan.layout import ACTIVATION, GRADIENT
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FREE,
    RECEIVE,
    RECOMPUTE,
    REDUCE,
    SEND,
    STEP,
    Instruction,
    Schedule,
)
from halocline.schedule.walk import ScheduleError, walk


def check(schedule: Schedule) -> None:
    """Raises ScheduleError at the first thing that is wrong; returns if the schedule is proved."""
    if len(schedule.ranks) != schedule.layout.ranks_per_replica:
        raise ScheduleError(
            f"the schedule has {len(schedule.ranks)} ranks and its plan needs {schedule.layout.ranks_per_replica}"
        )
    places = [_numbered(rank, row) for rank, row in enumerate(schedule.ranks)]
    for rank in range(len(schedule.ranks)):
        _check_rank(schedule, rank, places[rank])
    _check_pairs(schedule)
    for _ in walk(schedule):
        pass


def _numbered(rank: int, row: tuple[Instruction, ...]) -> dict[Instruction, int]:
    """Where each instruction stands in a rank's list; none may stand twice."""
    places: dict[Instruction, int] = {}
    for number, instruction in enumerate(row):
        if instruction in places:
            raise ScheduleError(
                f"rank {rank}: {instruction} stands twice, at instructions {places[instruction]} and {number}"
            )
        places[instruction] = number
    return places


def _check_rank(schedule: Schedule, rank: int, places: dict[Instruction, int]) -> None:
    plan, layout = schedule.plan, schedule.layout
    last = len(plan.stages) - 1
    seen: set[int] = set()
    final: dict[int, int] = {}
    roles = layout.roles(rank)
    stages = {(role.pipe, role.stage) for role in roles}

    def at(instruction: Instruction) -> int:
        number = places.get(instruction)
        if number is None:
            raise ScheduleError(f"rank {rank}: {instruction} is missing")
        seen.add(number)
        return number

    def before(first: int, then: int, why: str) -> None:
        if first > then:
            row = schedule.ranks[rank]
            raise ScheduleError(
                f"rank {rank}: {row[then]} (instruction {then}) stands before {row[first]} (instruction {first}): {why}"
            )

    for role in roles:
        pipe, stage = role.pipe, role.stage
        receive_down, send_down, receive_up, send_up = _peers(schedule, rank, pipe, stage)
        for m in range(plan.microbatches):
            if plan.pipe_of(m) != pipe:
                continue
            forward = at(Instruction(FORWARD, pipe, stage, m))
            whole = Instruction(BACKWARD, pipe, stage, m)
            if whole in places:
                backward = done = at(whole)
            else:
                halves = Instruction(BACKWARD_INPUT, pipe, stage, m), Instruction(BACKWARD_WEIGHT, pipe, stage, m)
                if halves[0] not in places and halves[1] not in places:
                    raise ScheduleError(f"rank {rank}: {whole} is missing")
                backward, done = at(halves[0]), at(halves[1])
                before(backward, done, "the weight gradient needs the input gradient's work")
            before(forward, backward, "a backward needs its forward")
            again = Instruction(RECOMPUTE, pipe, stage, m)
            if again in places:
                if not plan.stages[stage].recompute:
                    raise ScheduleError(f"rank {rank}: {again} recomputes a stage that keeps its activations")
                before(forward, at(again), "a recompute needs the input its forward kept")
                before(places[again], backward, "a backward needs what its recompute rebuilds")
            for peer in receive_down:
                number = at(Instruction(RECEIVE, pipe, stage - 1, m, ACTIVATION, peer))
                before(number, forward, "a forward needs the activation it receives")
            for peer in receive_up:
                number = at(Instruction(RECEIVE, pipe, stage, m, GRADIENT, peer))
                before(number, backward, "a backward needs the gradient it receives")
            dropped = at(Instruction(FREE, pipe, stage, m))
            before(done, dropped, "a stage's tensors are freed after their last use")
            outgoing = [(forward, stage, ACTIVATION, peer) for peer in send_down]
            outgoing += [(backward, stage - 1, GRADIENT, peer) for peer in send_up]
            for made, boundary, what, peer in outgoing:
                number = at(Instruction(SEND, pipe, boundary, m, what, peer))
                before(made, number, "a tensor is sent after it is made")
                freed = at(Instruction(FREE, pipe, boundary, m, what, peer))
                before(number, freed, "a buffer is freed after its send")
                before(number, dropped, "a stage's tensors are freed after their last use")
            final[stage] = max(final.get(stage, -1), done)
            # Stages that share their ranks hand over without a message: then this list itself must have the order.
            if stage < last and not send_down and (pipe, stage + 1) in stages:
                before(forward, places[Instruction(FORWARD, pipe, stage + 1, m)], "a forward needs the stage before it")
                below = places.get(Instruction(BACKWARD, pipe, stage + 1, m))
                if below is None:
                    below = places[Instruction(BACKWARD_INPUT, pipe, stage + 1, m)]
                before(below, backward, "a backward needs the gradient of the stage after it")
    step = at(Instruction(STEP))
    for stage, done in final.items():
        if layout.reduces(stage):
            number = at(Instruction(REDUCE, 0, stage))
            before(done, number, "a reduction needs the stage's last backward")
            before(number, step, "the step needs the reduced gradients")
    if step != len(places) - 1:
        raise ScheduleError(f"rank {rank}: {schedule.ranks[rank][-1]} stands after the step: the step comes last")
    for number, instruction in enumerate(schedule.ranks[rank]):
        if number not in seen:
            raise ScheduleError(
                f"rank {rank}: {instruction} (instruction {number}) does not belong to this rank's roles, or does "
                f"again what another instruction does"
            )


def _peers(schedule: Schedule, rank: int, pipe: int, stage: int) -> tuple[list[int], ...]:
    """The ranks from which this one receives a stage's activations and to which it sends them, then from which it
    receives gradients and to which it sends those."""
    layout, last = schedule.layout, len(schedule.plan.stages) - 1

    def ends(boundary: int, what: str, incoming: bool) -> list[int]:
        links = layout.links(pipe, boundary, what) if 0 <= boundary < last else ()
        return [s if incoming else t for s, t in links if rank == (t if incoming else s)]

    return (
        ends(stage - 1, ACTIVATION, True),
        ends(stage, ACTIVATION, False),
        ends(stage, GRADIENT, True),
        ends(stage - 1, GRADIENT, False),
    )


def _check_pairs(schedule: Schedule) -> None:
    """For each pair of ranks, what one sends is what the other receives, in the same order."""
    sends: dict[tuple[int, int], list[tuple[Instruction, int]]] = {}
    receives: dict[tuple[int, int], list[tuple[Instruction, int]]] = {}
    for rank, row in enumerate(schedule.ranks):
        for number, instruction in enumerate(row):
            if instruction.kind == SEND:
                sends.setdefault((rank, instruction.peer), []).append((instruction, number))
            elif instruction.kind == RECEIVE:
                receives.setdefault((instruction.peer, rank), []).append((instruction, number))
    for source, target in sends.keys() | receives.keys():
        out, into = sends.get((source, target), []), receives.get((source, target), [])
        for (sent, at), (taken, place) in zip(out, into):
            if sent[1:5] != taken[1:5]:
                raise ScheduleError(
                    f"rank {source}: {sent} (instruction {at}) meets rank {target}: {taken} (instruction {place}): "
                    f"the two sides list their messages in different orders"
                )
        assert len(out) == len(into), "each side was found complete"
