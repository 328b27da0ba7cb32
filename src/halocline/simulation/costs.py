"""The cost table: how long each stage's instructions take and how many bytes they keep and send. It knows no schedule;
`per_stage` spreads it over the stages of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from halocline.plan.plan import Plan
from halocline.plan.require import require_type

Amount = float | Sequence[float]
"""One number for all stages, or one for each."""


class StageCosts(NamedTuple):
    """What one stage costs, in the units of the table."""

    forward: float
    backward: float
    weight: float
    recompute: float
    reduce: float
    activation_bytes: float
    boundary_bytes: float
    weight_bytes: float


@dataclass(frozen=True)
class Costs:
    """Durations in any one unit, sizes in bytes. Every amount is one number, or one per stage.

    With chunks, durations and sizes are those of a whole place, of which each of its stages takes an equal part, so
    that the same table compares an interleaved schedule with others. A list with one number per stage is taken as is.
    """

    forward: Amount = 1.0
    """Time of one microbatch's forward in a stage."""
    backward: Amount = 2.0
    """Time of the whole backward, without recomputation."""
    weight: Amount | None = None
    """Time of the backward's weight half, where a schedule cuts it in two; half of the backward when left out."""
    recompute: Amount | None = None
    """Time to rebuild a stage's activations from its input; the forward's when left out."""
    latency: float = 0.0
    """Time between the last byte sent and its arrival."""
    bandwidth: float = math.inf
    """Bytes per unit of time from one rank to another; links of different pairs do not disturb each other."""
    activation_bytes: Amount = 0.0
    """What each rank of a stage keeps of one microbatch for the backward."""
    boundary_bytes: Amount = 0.0
    """The whole input of a stage, one microbatch; its tiles and lanes take equal shares of it."""
    weight_bytes: Amount = 0.0
    """What each rank of a stage keeps all the time: parameters, gradients and optimizer state."""
    reduce: Amount = 0.0
    """Time to sum a stage's gradients over the ranks that share it; runs beside the computation."""
    step: float = 0.0
    """Time of the optimizer's step."""

    def __post_init__(self) -> None:
        for name in StageCosts._fields:
            if name not in ("weight", "recompute") or getattr(self, name) is not None:
                _require_amount(name, getattr(self, name))
        for name in ("latency", "step"):
            _require_number(name, getattr(self, name))
        _require_number("bandwidth", self.bandwidth, finite=False)
        if not self.bandwidth > 0:
            raise ValueError(
                f"bandwidth = {self.bandwidth:g} is not above 0: no message would arrive, leave it out for inf"
            )

    def per_stage(self, plan: Plan) -> tuple[StageCosts, ...]:
        """One row per stage of the plan."""
        forward = _spread("forward", self.forward, plan)
        backward = _spread("backward", self.backward, plan)
        weight = [b / 2 for b in backward] if self.weight is None else _spread("weight", self.weight, plan)
        for stage, (whole, half) in enumerate(zip(backward, weight)):
            if half > whole:
                raise ValueError(
                    f"weight = {half:g} is longer than backward = {whole:g} in stage {stage}: "
                    f"it is a part of the backward, use at most {whole:g}"
                )
        recompute = forward if self.recompute is None else _spread("recompute", self.recompute, plan)
        names = "reduce", "activation_bytes", "boundary_bytes", "weight_bytes"
        others = (_spread(name, getattr(self, name), plan, shared=name != "boundary_bytes") for name in names)
        return tuple(map(StageCosts, forward, backward, weight, recompute, *others))


def _spread(name: str, amount: Amount, plan: Plan, shared: bool = True) -> list[float]:
    """The amount of each stage. What belongs to a place is shared by its chunks; a boundary is not."""
    part = plan.chunks if shared else 1
    stages, places = len(plan.stages), plan.places
    if isinstance(amount, (int, float)):
        return [amount / part] * stages
    if len(amount) == stages:
        return [float(value) for value in amount]
    if len(amount) == places:
        return [amount[stage % places] / part for stage in range(stages)]
    needed = f"{stages} stages" if places == stages else f"{places} places of {plan.chunks} stages each"
    raise ValueError(
        f"{name} has {len(amount)} numbers and the plan {needed}: give one number for all, or {places} of them"
    )


def _require_amount(name: str, amount: object) -> None:
    if isinstance(amount, Sequence) and not isinstance(amount, str):
        if not amount:
            raise ValueError(f"{name} has 0 numbers: give one for all stages, or one for each")
        for index, value in enumerate(amount):
            _require_number(f"{name}[{index}]", value)
    else:
        _require_number(name, amount)


def _require_number(name: str, value: object, finite: bool = True) -> None:
    require_type(name, value, float, "0 or more")
    assert isinstance(value, (int, float))
    if not value >= 0 or (finite and value == math.inf):
        raise ValueError(f"{name} = {value:g} is not a finite number of at least 0: give 0 or more")
