"""What a run would be, found without starting it: its plan proved and priced, and what each stage has, does and keeps.

    forecast(settings)    # what --dry-run prints

Operations and bytes come from running the layers without data; time is theirs at a speed that is assumed and said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halocline.models.count import Count, LayerWork, count, work
from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.plan.stage import PARAMETERS
from halocline.runtime.building import check_divisible
from halocline.runtime.layers import named_layers
from halocline.schedule.generate import generate
from halocline.simulation import Costs, simulate
from halocline.train.planning import as_it_was, model_of, named, plan_to_train
from halocline.train.run_directory import resolved
from halocline.train.settings import Settings

SPEED = 100e12
"""Operations per second of one rank, for want of a measurement: about what an A100 does of a transformer in bf16."""
WIDTH = {"float32": 4, "float64": 8, "bf16": 4}
"""Bytes of a parameter."""
STATES = {"sgd": 1, "adamw": 2}
"""Numbers that an optimizer keeps for each parameter."""


@dataclass(frozen=True)
class StageForecast:
    """A stage."""

    layers: tuple[int, int]
    ranks: tuple[int, ...]
    """Of the first replica and pipe."""
    parameters: int
    """Of the layers, with their copies of tied ones."""
    flops: int | None
    """Of a microbatch's forward on all of its ranks; None where it cannot be counted."""


@dataclass(frozen=True)
class Forecast:
    """What a run would be."""

    model: str
    layers: int
    parameters: int
    """A tied parameter counts once."""
    sample: str
    plan: Plan
    stages: tuple[StageForecast, ...]
    instructions: int
    """Of the schedule, which has been proved."""
    makespan: float
    """Seconds at SPEED; in forwards of one layer where operations cannot be counted."""
    bubble: float
    memory: tuple[float, ...] | None
    """Bytes at the peak, of each rank of a replica, without what an operator needs only while it runs; None where they
    cannot be counted."""


def forecast(settings: Settings) -> Forecast:
    """Everything about a run that can be known before it starts."""
    found = resolved(named(settings))
    settings, model = found.settings, model_of(found.settings)
    plan = found.plan or plan_to_train(settings, model, found.samples)
    schedule = generate(plan)
    layout = schedule.layout
    check_divisible(layout, named_layers(model.layers))
    try:
        with as_it_was(model):
            done: tuple[LayerWork, ...] | None = work(model, plan.image)
        size = count(model, None if plan.image is None else (plan.image[0], plan.image[1]))
    except ValueError:  # a layer that cannot be run without data: the plan can still be proved and drawn
        done, size = None, count(model, activations=False)
    costs = _costs(settings, layout, done, size) if done is not None else _by_layers(plan)
    priced = simulate(schedule, costs)
    samples = _samples(plan)
    stages = []
    for number, stage in enumerate(plan.stages):
        inside = slice(*stage.layers)
        flops = None if done is None else round(samples * sum(layer.flops for layer in done[inside]))
        own = done if done is not None else size.layers
        parameters = sum(layer.parameters for layer in own[inside])
        stages.append(StageForecast(stage.layers, layout.team(0, number), parameters, flops))
    return Forecast(
        model.name,
        len(size.layers),
        size.parameters,
        f"{model.sequence} tokens" if model.sequence else " x ".join(map(str, plan.image or model.image)) + " pixels",
        plan,
        tuple(stages),
        schedule.instruction_count,
        priced.makespan,
        priced.bubble,
        priced.peak_memory if done is not None else None,
    )


def _samples(plan: Plan) -> float:
    """Of a microbatch."""
    assert plan.batch is not None
    return plan.batch / plan.microbatches


def _costs(settings: Settings, layout: Layout, done: Sequence[LayerWork], size: Count) -> Costs:
    """Of each rank of each stage. Tensor-parallel ranks' activations count whole, though parts of them are divided."""
    samples = _samples(layout.plan)
    forward, activations, boundaries, weights = [], [], [], []
    for number, stage in enumerate(layout.plan.stages):
        inside = slice(*stage.layers)
        shares = stage.tile_count * stage.lanes
        forward.append(samples * sum(layer.flops for layer in done[inside]) / stage.team_size / SPEED)
        activations.append(samples * sum(layer.activation_bytes or 0 for layer in size.layers[inside]) / shares)
        first = stage.layers[0]
        boundaries.append(samples * done[first - 1].output_bytes if first else 0.0)
        held = sum(layer.parameters for layer in done[inside]) * WIDTH[settings.run.dtype] / stage.tensor
        whole, divided = _divided(settings, stage.shard)
        weights.append(held * (whole + divided / len(layout.sharers(number))))
    return Costs(
        forward=forward,
        backward=[2 * time for time in forward],
        activation_bytes=activations,
        boundary_bytes=boundaries,
        weight_bytes=weights,
    )


def _divided(settings: Settings, shard: str) -> tuple[int, int]:
    """Numbers kept for each parameter (itself, its gradient, the optimizer's): whole, and divided among its sharers."""
    states = STATES[settings.optimizer.name]
    if shard == PARAMETERS:
        return 0, 2 + states
    return (2, states) if shard != "none" or settings.optimizer.shard_optimizer else (2 + states, 0)


def _by_layers(plan: Plan) -> Costs:
    """As if all layers were alike."""
    sizes = [float(stage.layers[1] - stage.layers[0]) for stage in plan.stages]
    return Costs(forward=sizes, backward=[2 * size for size in sizes])
