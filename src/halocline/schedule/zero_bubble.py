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
from halocline.schedule.instruction import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Instruction


def zero_bubble(plan: Plan, stage: int) -> list[Instruction]:
    count = plan.microbatches
    warm = min(count, len(plan.stages) - 1 - stage)
    late = stage
    order = [Instruction(FORWARD, 0, stage, m) for m in range(warm)]
    for m in range(count):
        if m + warm < count:
            order.append(Instruction(FORWARD, 0, stage, m + warm))
        order.append(Instruction(BACKWARD_INPUT, 0, stage, m))
        if m >= late:
            order.append(Instruction(BACKWARD_WEIGHT, 0, stage, m - late))
    order += [Instruction(BACKWARD_WEIGHT, 0, stage, m) for m in range(max(0, count - late), count)]
    return order
