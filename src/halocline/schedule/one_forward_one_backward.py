"""1F1B: a few forwards to fill the pipe, then one forward and one backward in turn. GPipe's bubble, fewer activations:
stage s holds min(D - s, N).

    rank 0  F0 F1 F2 F3 .. .. .. B0 .. B1 .. B2 .. B3
    rank 1  .. F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
    rank 2  .. .. F0 F1 .. B0 F2 B1 F3 B2 .. B3
    rank 3  .. .. .. F0 B0 F1 B1 F2 B2 F3 B3

With early recompute (R), a stage that keeps only its input rebuilds the rest of the next microbatch while it waits for
that microbatch's gradient, instead of inside the backward. Here all stages but the last do:

    rank 0  F0 F1 F2 F3 R0 .. .. B0 R1 .. B1 R2 .. B2 R3 B3
    rank 1  .. F0 F1 F2 R0 .. B0 F3 R1 B1 R2 .. B2 R3 B3
    rank 2  .. .. F0 F1 R0 B0 F2 R1 B1 F3 R2 B2 R3 B3
    rank 3  .. .. .. F0 B0 F1 B1 F2 B2 .. F3 B3
"""

from __future__ import annotations

from halocline.plan.plan import Plan
from halocline.schedule.instruction import BACKWARD, FORWARD, RECOMPUTE, Instruction


def one_forward_one_backward(plan: Plan, stage: int) -> list[Instruction]:
    warm = min(plan.microbatches, len(plan.stages) - 1 - stage)
    order = [Instruction(FORWARD, 0, stage, m) for m in range(warm)]
    for m in range(plan.microbatches):
        if m + warm < plan.microbatches:
            order.append(Instruction(FORWARD, 0, stage, m + warm))
        order.append(Instruction(BACKWARD, 0, stage, m))
    return order


def early_recompute(plan: Plan, stage: int) -> list[Instruction]:
    order: list[Instruction] = []
    for operation in one_forward_one_backward(plan, stage):
        if operation.kind == BACKWARD and plan.stages[stage].recompute:
            order.append(operation._replace(kind=RECOMPUTE))
        order.append(operation)
    return order
