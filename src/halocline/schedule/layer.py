"""Layer parallelism: one microbatch at a time goes down the stages and back. One rank is busy, one microbatch is held.

rank 0  F0 .. .. .. .. .. .. B0 F1 .. .. .. .. .. .. B1
rank 1  .. F0 .. .. .. .. B0 .. .. F1 .. .. .. .. B1
rank 2  .. .. F0 .. .. B0 .. .. .. .. F1 .. .. B1
rank 3  .. .. .. F0 B0 .. .. .. .. .. .. F1 B1
"""

from __future__ import annotations

from halocline.plan.plan import Plan
from halocline.schedule.instruction import BACKWARD, FORWARD, Instruction


def layer(plan: Plan, stage: int) -> list[Instruction]:
    return [Instruction(kind, 0, stage, m) for m in range(plan.microbatches) for kind in (FORWARD, BACKWARD)]
