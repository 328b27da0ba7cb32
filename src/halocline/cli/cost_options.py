"""The options that make a cost table, and how `1,1,2,1` is read. Knows no plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

from halocline.simulation.costs import Amount, Costs


@dataclass(frozen=True)
class CostOptions:
    """Durations in any one unit; sizes in bytes. Where it says per stage, give one number for all or 1,1,2,1."""

    forward: str = "1"
    """Time of one microbatch's forward, per stage."""
    backward: str = "2"
    """Time of the whole backward, per stage."""
    weight: str | None = None
    """Time of the backward's weight half, per stage, for zb-h1 (left out: half of the backward)."""
    recompute_time: str | None = None
    """Time to rebuild activations from a stage's input, per stage (left out: the forward's)."""
    reduce: str = "0"
    """Time to sum gradients over the ranks that share them, per stage."""
    step: float = 0.0
    """Time of the optimizer's step."""
    latency: float = 0.0
    """Time a message takes on top of its bytes / bandwidth."""
    bandwidth: float | None = None
    """Bytes per unit of time from one rank to another (left out: no limit)."""
    activation_bytes: str = "0"
    """What each rank keeps of one microbatch, per stage."""
    boundary_bytes: str = "0"
    """The whole input of a stage for one microbatch, per stage."""
    weight_bytes: str = "0"
    """Parameters, gradients and optimizer state on each rank, per stage."""


def costs_from_options(options: CostOptions) -> Costs:
    return Costs(
        forward=_amount("forward", options.forward),
        backward=_amount("backward", options.backward),
        weight=None if options.weight is None else _amount("weight", options.weight),
        recompute=None if options.recompute_time is None else _amount("recompute-time", options.recompute_time),
        reduce=_amount("reduce", options.reduce),
        step=options.step,
        latency=options.latency,
        bandwidth=math.inf if options.bandwidth is None else options.bandwidth,
        activation_bytes=_amount("activation-bytes", options.activation_bytes),
        boundary_bytes=_amount("boundary-bytes", options.boundary_bytes),
        weight_bytes=_amount("weight-bytes", options.weight_bytes),
    )


def _amount(name: str, text: str) -> Amount:
    numbers = []
    for word in text.split(","):
        try:
            numbers.append(float(word))
        except ValueError:
            raise ValueError(
                f"--{name} = {text!r}: {word!r} is not a number: write --{name} 1, or one number per stage as 1,1,2,1"
            ) from None
    return tuple(numbers) if len(numbers) > 1 else numbers[0]
