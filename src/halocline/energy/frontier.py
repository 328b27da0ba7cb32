"""The frontier: the least energy of an iteration for every time it may take, of any schedule and plan, and a frequency
plan for each. Reads schedules and profiles; knows nothing of devices.

    T_min ............ T* : between the fastest iteration and the one in which every operation is as slow as pays

The energy counts every rank of every replica: what its operations take, and the blocking power while it waits. Beyond T*
nothing is gained by slowing down, the ranks only wait.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from halocline.energy.choices import Choices, Menu
from halocline.energy.curve import TICKS, WATT, Curve, effective_cost, hull, ticks_of
from halocline.energy.exponential import candidates, exponential, units
from halocline.energy.flow import Vertex, vertices
from halocline.energy.frequency_plan import FrequencyPlan
from halocline.energy.graph import Graph, Operation, graph_of
from halocline.energy.network import begin, end, network_of
from halocline.energy.profile_table import ProfileTable
from halocline.energy.rounding import Rounder, Steps, steps_of
from halocline.plan.plan import Plan
from halocline.schedule.generate import generate
from halocline.schedule.instruction import Schedule

COSTS = ("hull", "exponential")
"""What an operation's cost between its choices is taken to be."""


class Point(NamedTuple):
    """A corner of the frontier, which is straight between corners."""

    time: float
    """Seconds."""
    energy: float
    """Joules of all ranks of all replicas."""


def solve(
    schedule: Schedule | Plan,
    profile: ProfileTable,
    blocking_power: float,
    cost: str = "hull",
    *,
    unit_time: float = 0.001,
    latency: float = 0.0,
) -> Frontier:
    """The whole frontier.

    `blocking_power` is what a waiting rank takes, in watts. `cost` is hull (real times, convex hull of the choices'
    effective cost) or exponential (the Perseus paper's model, with times floored to `unit_time` seconds). A message
    takes `latency` seconds."""
    raise NotImplementedError
