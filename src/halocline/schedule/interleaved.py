"""Interleaved 1F1B: each of D places holds v stages (chunks), so the pipe fills v times faster: bubble (D-1)/(vN+D-1).

Two places with two chunks each (stages 0, 2 and 1, 3) and four microbatches; F and B act on a place's first stage, f
and b on its second, each half as long as in the other drawings:

    rank 0  F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 .. b2 .. b3 B2 B3
    rank 1  .. F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3
"""

from __future__ import annotations

from halocline.plan.plan import Plan
from halocline.schedule.instruction import BACKWARD, FORWARD, Instruction


def interleaved(plan: Plan, place: int) -> list[Instruction]:
    """The order of one place. Work goes in rounds of D microbatches: all chunks of a round, then the next round."""
    depth, chunks = plan.places, plan.chunks
    total = plan.microbatches * chunks

    def operation(kind: str, k: int) -> Instruction:
        turn, position = divmod(k, depth * chunks)
        chunk, offset = divmod(position, depth)
        if kind == BACKWARD:
            chunk = chunks - 1 - chunk
        return Instruction(kind, 0, chunk * depth + place, turn * depth + offset)

    warm = min(total, (chunks - 1) * depth + 2 * (depth - 1 - place))
    order = [operation(FORWARD, k) for k in range(warm)]
    for k in range(total):
        if k + warm < total:
            order.append(operation(FORWARD, k + warm))
        order.append(operation(BACKWARD, k))
    return order
