"""What an instruction may choose between: a frequency, and the time and energy it then takes. Reads them off a profile
and fills in what the profile lacks; knows no order of instructions.

Where a profile lacks an instruction (all sums and differences are taken at equal frequencies):

| instruction                     | is taken as                                                                      |
|---------------------------------|----------------------------------------------------------------------------------|
| backward, of both halves        | backward_input + backward_weight                                                 |
| backward_input, backward_weight | half of the backward each                                                        |
| recompute                       | the forward                                                                      |
| reduce                          | no time, no energy                                                               |

The backward of a stage that keeps only its input is measured with its recomputation, so without recompute rows it
contains it, and a schedule that recomputes apart takes the forward out of it. With recompute rows, backward rows are
the backward alone, and a backward that recomputes by itself is the sum of both.

A profile with one stage per place of an interleaved plan is shared out: each of a place's chunks takes an equal part.
"""

from __future__ import annotations

from typing import NamedTuple

from halocline.energy.profile.table import ProfileTable
from halocline.plan.plan import Plan
from halocline.schedule.instruction import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, RECOMPUTE, REDUCE


class Choice(NamedTuple):
    """One way to run an instruction."""

    frequency: int
    """MHz."""
    time: float
    """Seconds."""
    energy: float
    """Joules of one rank."""


Choices = tuple[Choice, ...]
"""Highest frequency first."""


class Menu:
    """The choices of every instruction of a plan."""

    def __init__(self, profile: ProfileTable, plan: Plan) -> None:
        stages, places = len(plan.stages), plan.places
        if profile.stages not in (stages, places):
            needed = f"{stages} stages" if places == stages else f"{places} places of {plan.chunks} stages each"
            raise ValueError(
                f"the profile has {profile.stages} stages and the plan {needed}: profile this plan, or give the plan "
                f"{profile.stages} stages"
            )
        self._profile, self._plan = profile, plan
        self._known: dict[tuple[str, int, bool], Choices] = {}

    def of(self, kind: str, stage: int, rebuilds: bool = False) -> Choices:
        """The choices of an instruction of a kind; none where it takes no time.

        `rebuilds`: it is a backward that first recomputes its stage's activations."""
        key = (kind, stage, rebuilds)
        if key not in self._known:
            self._known[key] = self._find(kind, stage, rebuilds)
        return self._known[key]

    def _find(self, kind: str, stage: int, rebuilds: bool) -> Choices:
        if kind in (FORWARD, REDUCE):
            return self._rows(stage, kind)
        if kind == RECOMPUTE:
            return self._rows(stage, RECOMPUTE) or self._rows(stage, FORWARD)
        inside = rebuilds and bool(self._rows(stage, RECOMPUTE))
        if kind == BACKWARD:
            made = self._backward(stage) if rebuilds else self._alone(stage)
        else:
            assert kind in (BACKWARD_INPUT, BACKWARD_WEIGHT), kind
            made = self._half(kind, stage, rebuilds)
            inside = inside and kind == BACKWARD_INPUT
        return self._sum(made, self._rows(stage, RECOMPUTE), stage) if inside else made

    def _rows(self, stage: int, kind: str) -> Choices:
        profile, plan = self._profile, self._plan
        if profile.stages == len(plan.stages):
            return tuple(Choice(row.frequency, row.time, row.energy) for row in profile.of(stage, kind))
        rows = profile.of(stage % plan.places, kind)
        return tuple(Choice(row.frequency, row.time / plan.chunks, row.energy / plan.chunks) for row in rows)

    def _backward(self, stage: int) -> Choices:
        """The whole backward as it was measured."""
        return self._rows(stage, BACKWARD) or self._sum(
            self._rows(stage, BACKWARD_INPUT), self._rows(stage, BACKWARD_WEIGHT), stage
        )

    def _alone(self, stage: int) -> Choices:
        """The whole backward without recomputation."""
        whole = self._backward(stage)
        if not self._plan.stages[stage].recompute or self._rows(stage, RECOMPUTE):
            return whole
        rest = []
        for backward, forward in self._pairs(whole, self._rows(stage, FORWARD), stage):
            left = Choice(backward.frequency, backward.time - forward.time, backward.energy - forward.energy)
            if left.time <= 0 or left.energy < 0:
                raise ValueError(
                    f"stage {stage} recomputes apart from its backward, which at {left.frequency} MHz takes "
                    f"{backward.time:g} s, {backward.energy:g} J and its forward {forward.time:g} s, "
                    f"{forward.energy:g} J: there is no recomputation in it to take out, add recompute rows to the "
                    f"profile"
                )
            rest.append(left)
        return tuple(rest)

    def _half(self, kind: str, stage: int, rebuilds: bool) -> Choices:
        measured = self._rows(stage, kind)
        if measured:
            return measured
        halves = tuple(Choice(f, time / 2, energy / 2) for f, time, energy in self._alone(stage))
        if kind == BACKWARD_INPUT and rebuilds and not self._rows(stage, RECOMPUTE):
            # The rest of what was measured: the backward's other half and the recomputation inside it.
            return self._sum(self._backward(stage), halves, stage, -1)
        return halves

    def _sum(self, left: Choices, right: Choices, stage: int, sign: int = 1) -> Choices:
        pairs = self._pairs(left, right, stage)
        return tuple(Choice(a.frequency, a.time + sign * b.time, a.energy + sign * b.energy) for a, b in pairs)

    def _pairs(self, left: Choices, right: Choices, stage: int) -> list[tuple[Choice, Choice]]:
        """Choices of two parts of a stage's backward at equal frequencies."""
        others = {choice.frequency: choice for choice in right}
        pairs = [(choice, others[choice.frequency]) for choice in left if choice.frequency in others]
        if not pairs:
            raise ValueError(
                f"stage {stage} has no frequency at which all parts of its backward were measured: profile forward, "
                f"backward and recompute at the same frequencies"
            )
        return pairs
