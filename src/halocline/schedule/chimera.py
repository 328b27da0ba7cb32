"""Chimera: two mirrored pipes run at once and fill each other's bubbles: (D-2)/(2N+D-2) where forward and backward take
equally long, against (D-1)/(N+D-1) for 1F1B. A rank holds at most D activations. F and B are pipe 0, f and b pipe 1:

    rank 0  F0 F2 .. f1 b1 f3 b3 B0 .. B2
    rank 1  .. F0 f1 F2 f3 b1 B0 b3 B2
    rank 2  .. f1 F0 f3 F2 B0 b1 B2 b3
    rank 3  f1 f3 .. F0 B0 F2 B2 b1 .. b3

The order is found by list scheduling with equal forward and backward times and room for D activations. On plain stages
that gives the published makespan 2N + D - 2 where N is a multiple of D, and on tiled ones, where the two pipes' teams
overlap, an order that works.
"""

from __future__ import annotations

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.schedule.instruction import Orders
from halocline.schedule.list_scheduler import list_schedule


def chimera(plan: Plan, layout: Layout) -> Orders:
    return list_schedule(plan, layout, cap=len(plan.stages))
