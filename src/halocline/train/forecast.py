"""What a run would be, found without starting it: its plan proved and priced, and what each stage has, does and keeps.

    forecast(settings)    # what --dry-run prints

Operations and bytes come from running the layers without data; time is theirs at the speed of a device that is named,
or is here and is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch

from halocline.models.count import Count, count
from halocline.models.model import Model
from halocline.models.operators import LayerOperators, operators
from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.plan.stage import PARAMETERS
from halocline.runtime.building import check_divisible
from halocline.runtime.layers import named_layers
from halocline.schedule.generate import generate
from halocline.simulation import Costs, simulate
from halocline.simulation.speed import ASSUMED, KNOWN, DeviceSpeed
from halocline.train.planning import as_it_was, model_of, named, plan_to_train
from halocline.train.run_directory import resolved
from halocline.train.settings import RunSettings, Settings
from halocline.train.trainer import DTYPES

WIDTH = {"float32": 4, "float64": 8, "bf16": 4}
"""Bytes of a parameter."""
STATES = {"sgd": 1, "adamw": 2}
"""Numbers that an optimizer keeps for each parameter."""
_SECONDS = 0.2
"""Of measuring, for each number."""
_ROW = 8
"""Calls that are timed together."""
_IN_A_MODULE = 4
"""Times that an operator's launch takes in a module, under autograd, of a bare one's: measured on an H200's host."""


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
    seconds: tuple[float, float] | None
    """A microbatch's forward and backward, without recomputing; None where they cannot be counted."""


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
    speed: DeviceSpeed | None
    """Of the device that is priced; None where operations cannot be counted."""
    makespan: float
    """Seconds of a step; in forwards of one layer where operations cannot be counted."""
    bubble: float
    memory: tuple[float, ...] | None
    """Bytes at the peak, of each rank of a replica, without what an operator needs only while it runs; None where they
    cannot be counted."""
    uncounted: str
    """Why operations cannot be counted; empty where they are."""


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
            work: _Work | None = _work(model, plan, DTYPES[settings.run.dtype])
        size, uncounted = count(model, _image(plan), dtype=DTYPES[settings.run.dtype]), ""
    except ValueError as error:  # a layer that cannot be run without data: the plan can still be proved and drawn
        work, size, uncounted = None, count(model, activations=False), str(error)
    speed = None if work is None else speed_of(settings.run)
    costs = _by_layers(plan) if work is None or speed is None else _costs(settings, layout, work, size, speed)
    priced, rows = simulate(schedule, costs), costs.per_stage(plan)
    stages = []
    for number, stage in enumerate(plan.stages):
        inside = slice(*stage.layers)
        flops = None if work is None else round(work.scale * sum(x.flops for x in work.layers[inside]))
        own = size.layers if work is None else work.layers
        parameters = sum(layer.parameters for layer in own[inside])
        seconds = None if work is None else (rows[number].forward, rows[number].backward)
        stages.append(StageForecast(stage.layers, layout.team(0, number), parameters, flops, seconds))
    return Forecast(
        model.name,
        len(size.layers),
        size.parameters,
        f"{model.sequence} tokens" if model.sequence else " x ".join(map(str, plan.image or model.image)) + " pixels",
        plan,
        tuple(stages),
        schedule.instruction_count,
        speed,
        priced.makespan,
        priced.bubble,
        None if work is None else priced.peak_memory,
        uncounted,
    )


def _image(plan: Plan) -> tuple[int, int] | None:
    return None if plan.image is None else (plan.image[0], plan.image[1])


class _Work(NamedTuple):
    """What the layers run for a number of samples."""

    layers: tuple[LayerOperators, ...]
    scale: float
    """Of a microbatch, which may be a fraction of those samples or more."""


def _work(model: Model, plan: Plan, dtype: torch.dtype) -> _Work:
    assert plan.batch is not None
    samples = plan.batch / plan.microbatches
    whole = max(1, round(samples))
    try:
        return _Work(operators(model, _image(plan), whole, dtype), samples / whole)
    except ValueError as error:
        if whole > 1 or "more than 1 value per channel" not in str(error):
            raise
        return _Work(operators(model, _image(plan), 2, dtype), samples / 2)


def _costs(settings: Settings, layout: Layout, work: _Work, size: Count, speed: DeviceSpeed) -> Costs:
    """Of each rank of each stage. Tensor-parallel ranks' activations count whole, though parts of them are divided."""
    plan, dtype = layout.plan, settings.run.dtype
    assert plan.batch is not None
    samples = plan.batch / plan.microbatches
    forward, backward, activations, boundaries, weights, reductions, moved = [], [], [], [], [], [], []
    for number, stage in enumerate(plan.stages):
        inside = slice(*stage.layers)
        shares = stage.tile_count * stage.lanes
        layers, ranks = work.layers[inside], stage.team_size / work.scale
        forward.append(speed.seconds([x for layer in layers for x in layer.forward], dtype, ranks))
        backward.append(speed.seconds([x for layer in layers for x in layer.backward], dtype, ranks))
        activations.append(samples * sum(layer.activation_bytes or 0 for layer in size.layers[inside]) / shares)
        first = stage.layers[0]
        boundaries.append(work.scale * work.layers[first - 1].output_bytes if first else 0.0)
        held = sum(layer.parameters for layer in layers) * WIDTH[dtype] / stage.tensor
        whole, divided = _divided(settings, stage.shard)
        sharers = len(layout.sharers(number))
        weights.append(held * (whole + divided / sharers))
        reductions.append(2 * held * (sharers - 1) / sharers / speed.link)  # around a ring
        updated = held / (sharers if divided else 1)
        moved.append(updated * (3 + 2 * STATES[settings.optimizer.name]))  # all read, all but the gradient written
    return Costs(
        forward=forward,
        backward=backward,
        latency=speed.latency,
        bandwidth=speed.link,
        activation_bytes=activations,
        boundary_bytes=boundaries,
        weight_bytes=weights,
        reduce=reductions,
        step=max(moved) / speed.memory,
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


# -- the device ------------------------------------------------------------------------------------------------------


def speed_of(run: RunSettings) -> DeviceSpeed:
    """Of the device that the settings name. Where none is named and no GPU is here, of one that is assumed."""
    return _speed(run).channels_last() if run.channels_last else _speed(run)


def _speed(run: RunSettings) -> DeviceSpeed:
    if run.device in KNOWN:
        return KNOWN[run.device]
    if run.device == "cpu" or torch.cuda.is_available():
        return _measured(torch.device("cpu" if run.device == "cpu" else "cuda"))
    return replace(KNOWN[ASSUMED], name=f"{ASSUMED} (assumed: --device names another)")


def _measured(device: torch.device) -> DeviceSpeed:
    """Matrix products, a copy that no cache holds, and operators on one number."""
    on_gpu = device.type == "cuda"
    side, length = (4096, 2**26) if on_gpu else (768, 2**23)
    compute = {}
    allowed = torch.backends.cuda.matmul.allow_tf32
    for dtype, kind in {**DTYPES, "tf32": torch.float32}.items():
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        a = torch.ones(side, side, device=device, dtype=kind)
        compute[dtype] = 2 * side**3 / _seconds(partial(torch.mm, a, a), device)
    torch.backends.cuda.matmul.allow_tf32 = allowed
    source = torch.ones(length, device=device)
    target, one = torch.empty_like(source), torch.ones(1, device=device)
    memory = 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)
    launch = _IN_A_MODULE * _seconds(lambda: one + 1, device, wait=False)
    # One process cannot measure what is between two devices: a GPU's link is taken from one we know, a CPU's is memory.
    if on_gpu:
        return DeviceSpeed(
            f"{torch.cuda.get_device_name(device)}, measured", compute, memory, KNOWN[ASSUMED].link, launch
        )
    return DeviceSpeed("this CPU, measured", compute, memory, memory / 4, launch, shares={})


def _seconds(work: Callable[[], object], device: torch.device, wait: bool = True) -> float:
    """Of one call: the best of some rows of calls, as others use the machine, too."""

    def row() -> float:
        begin = time.perf_counter()
        for _ in range(_ROW):
            work()
        if device.type == "cuda" and wait:
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begin) / _ROW

    end = time.perf_counter() + _SECONDS
    row()  # warms up
    best = row()
    while time.perf_counter() < end:
        best = min(best, row())
    return best
