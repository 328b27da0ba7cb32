"""GPipe: all forwards, then all backwards. Bubble (D-1)/(N+D-1); every microbatch's activations are held at once.

rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0 B1 B2 B3
rank 1  .. F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3
rank 2  .. .. F0 F1 F2 F3 .. .. B0 B1 B2 B3
rank 3  .. .. .. F0 F1 F2 F3 B0 B1 B2 B3
"""

from __future__ import annotations

from halocline.plan.plan import Plan
from halocline.schedule.instruction import BACKWARD, FORWARD, Instruction


def gpipe(plan: Plan, stage: int) -> list[Instruction]:
    return [Instruction(kind, 0, stage, m) for kind in (FORWARD, BACKWARD) for m in range(plan.microbatches)]
