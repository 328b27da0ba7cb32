"""GEMS: two mirrored pipes take turns. As soon as a rank has done its backward of one pass, it may start the forward of
the next, which comes from the other end. One pass of activations is held: a memory schedule, for images of which only
one fits. Time D(F+B) + (k-1)(DB+F) for k passes. F and B are pipe 0, f and b pipe 1; a backward takes two slots here:

    rank 0  F0 .. .. .. .. .. .. .. .. .. B0 B0 f1 b1 b1
    rank 1  .. F0 .. .. .. .. .. .. B0 B0 f1 .. .. .. .. b1 b1
    rank 2  .. .. F0 .. .. .. B0 B0 f1 .. .. .. .. .. .. .. .. b1 b1
    rank 3  .. .. .. F0 B0 B0 f1 .. .. .. .. .. .. .. .. .. .. .. .. b1 b1

Two passes are MAST, more are MASTER, with replicas it is Hybrid. A pass may carry several microbatches, which then go
through it as in GPipe. Any plan works, tiles included: pass k only ever waits for passes up to k.
"""

from __future__ import annotations

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.schedule.instruction import BACKWARD, FORWARD, Instruction, Orders


def gems(plan: Plan, layout: Layout) -> Orders:
    share = plan.microbatches_per_pass
    orders: Orders = []
    for rank in range(layout.ranks_per_replica):
        stage_in = {role.pipe: role.stage for role in layout.roles(rank)}
        orders.append(
            [
                Instruction(kind, number % 2, stage_in[number % 2], number * share + m)
                for number in range(plan.microbatches // share)
                for kind in (FORWARD, BACKWARD)
                for m in range(share)
            ]
        )
    return orders
