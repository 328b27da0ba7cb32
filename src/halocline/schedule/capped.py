"""Capped: work starts whenever a team is idle and its data is there, but only while every rank's live activations stay
under a cap. With one pipe and cap D it runs like 1F1B, with cap 1 like layer parallelism; with two pipes and cap 1 it
finds GEMS, with cap D Chimera; and everything between, over any plan. One pipe with cap 2:

    rank 0  F0 F1 .. .. .. .. .. B0 F2 B1 F3 .. .. .. .. B2 .. B3
    rank 1  .. F0 F1 .. .. .. B0 .. B1 F2 .. F3 .. .. B2 .. B3
    rank 2  .. .. F0 F1 .. B0 .. B1 .. .. F2 .. F3 B2 .. B3
    rank 3  .. .. .. F0 B0 F1 B1 .. .. .. .. F2 B2 F3 B3
"""

from __future__ import annotations

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.schedule.instruction import Orders
from halocline.schedule.list_scheduler import PerStage, list_schedule


def capped(plan: Plan, layout: Layout, weights: PerStage, forward: PerStage, backward: PerStage) -> Orders:
    """`weights` are activations per microbatch and stage (1 each, or bytes, in the unit of the plan's cap)."""
    cap = len(plan.stages) * max(weights or [1.0]) if plan.cap is None else plan.cap
    backward = backward or [2.0] * len(plan.stages)
    return list_schedule(plan, layout, cap=cap, weights=weights, forward=forward, backward=backward)
