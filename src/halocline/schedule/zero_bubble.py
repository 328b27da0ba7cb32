"""ZB-H1 (zero bubble, memory as 1F1B): the backward is cut in two. The half that the stage above waits for, the input
gradient (I), runs at once; the weight gradient (W) fills what would be bubble. Bubble time (D-1)(F+I-W).

    rank 0  F0 F1 F2 F3 .. .. .. I0 W0 I1 W1 I2 W2 I3 W3
    rank 1  .. F0 F1 F2 .. .. I0 F3 I1 W0 I2 W1 I3 W2 W3
    rank 2  .. .. F0 F1 .. I0 F2 I1 F3 I2 W0 I3 W1 W2 W3
    rank 3  .. .. .. F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3

Stage s runs s weight gradients late: so many activations fewer than stage 0 it holds in 1F1B.
"""

from __future__ import annotations

from halocline.plan.plan import Plan
from halocline.schedule.instruction import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, Instruction
from halocline.schedule.one_forward_one_backward import one_forward_one_backward


def zero_bubble(plan: Plan, stage: int) -> list[Instruction]:
    count, late = plan.microbatches, stage
    order: list[Instruction] = []
    for operation in one_forward_one_backward(plan, stage):
        halves = operation.kind == BACKWARD
        order.append(operation._replace(kind=BACKWARD_INPUT) if halves else operation)
        if halves and operation.microbatch >= late:
            order.append(Instruction(BACKWARD_WEIGHT, 0, stage, operation.microbatch - late))
    return order + [Instruction(BACKWARD_WEIGHT, 0, stage, m) for m in range(max(0, count - late), count)]
