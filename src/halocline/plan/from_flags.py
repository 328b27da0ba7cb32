"""From flags to a plan: what now-dl's and Merak's command lines mean, in stages, tiles, lanes, pipes and replicas.

Processes of a replica = sum(num_spatial_parts) + (split_size - spatial_size) x local_DP, times the tensor degree.
Two flags that name one thing must agree; whatever the plan itself can check is left to it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

from halocline.plan.flags import TRAIN_SCHEDULES, Flags
from halocline.plan.grid import tile_grid
from halocline.plan.partition import Ranges, partition, whole_numbers
from halocline.plan.plan import MIRRORED, Plan
from halocline.plan.require import require_degree
from halocline.plan.stage import Stage
from halocline.plan.words import with_fields

V = TypeVar("V")


def plan_from_flags(
    flags: Flags | Sequence[str] | None = None,
    *,
    layers: int | None = None,
    costs: Sequence[float] | None = None,
    parameters: Sequence[float] | None = None,
    kinds: Sequence[str] | None = None,
    **fields: Any,
) -> Plan:
    """The plan that flags describe: a Flags, the words of a command line, or flags by keyword (`split_size=2`).

    `layers` counts the model's layers; `costs`, `parameters` and `kinds` hold one entry per layer for the partition
    methods that need them.
    """
    read = _read(flags, fields)
    layers = _agreed("the number of layers", {"layers": layers, "the flag layers": read.layers})
    schedule = _schedule(read)
    passes, microbatches = _microbatches(read, schedule)
    # Interleaved with one chunk would be 1f1b, so two is the least that the word can mean.
    chunks = 2 if schedule == "interleaved" and read.chunks is None else _degree("chunks", read.chunks)

    places = _places(read, chunks)
    tiles = _tiles(read, places)
    recomputes = _recompute(read)
    count = places * chunks
    ranges = _ranges(read, count, layers, costs, parameters, kinds)
    stages = tuple(
        Stage(
            layers=ranges[s],
            tiles=tiles[s % places] if s % places < len(tiles) else (1, 1),
            lanes=1 if s % places < len(tiles) else _degree("local_DP", read.local_DP),
            tensor=_degree("tp", read.tp),
            recompute=recomputes == "all" or (recomputes == "but-last" and s < count - 1),
            shard=read.shard or "none",
        )
        for s in range(count)
    )
    if schedule is None:
        schedule = "layer" if microbatches == 1 else "1f1b"
    return Plan(
        stages=stages,
        schedule=schedule,
        microbatches=microbatches,
        pipes=read.pipes if read.pipes is not None else 2 if schedule in MIRRORED else 1,
        replicas=_degree("replicas", _agreed("the number of replicas", {"dp": read.dp, "replicas": read.replicas})),
        chunks=chunks,
        passes=passes,
        cap=read.cap,
        fused=read.fused_layers if read.halo_D2 else 0,
        batch=_batch(read, schedule, microbatches, passes),
        image=_image(read),
    )


def _read(flags: Flags | Sequence[str] | None, fields: dict[str, Any]) -> Flags:
    if isinstance(flags, str):
        flags = shlex.split(flags)
    if not isinstance(flags, Flags):
        flags = Flags.read(flags or ())
    return with_fields(flags, fields)


# -- schedule and microbatches -------------------------------------------------------------------------------------


def _schedule(flags: Flags) -> str | None:
    merak = TRAIN_SCHEDULES[flags.train_schedule][0] if flags.train_schedule else None
    schedule = _agreed("the schedule", {"schedule": flags.schedule, "train_schedule": merak})
    if flags.times is None:
        return schedule
    require_degree("times", flags.times)
    if flags.times > 1 and schedule not in (None, "gems"):
        raise ValueError(
            f"times = {flags.times} repeats the passes of gems but schedule = {schedule!r} has none: "
            f"use times = 1 or schedule gems"
        )
    return "gems" if flags.times > 1 else schedule


def _microbatches(flags: Flags, schedule: str | None) -> tuple[int | None, int]:
    """Passes (gems only) and microbatches of a step."""
    parts = _degree("parts", flags.parts)
    if schedule != "gems":
        named = {"microbatches": flags.microbatches, "parts": flags.parts}
        return flags.passes, _degree("microbatches", _agreed("the microbatches of a step", named))
    # The replication of now-dl's worked examples: --times 2 is 2, --times 4 is 4, and there are no fewer than two.
    eta = None if flags.times is None else max(2, flags.times)
    passes = _agreed("the passes of gems", {"times": eta, "passes": flags.passes})
    if passes is None and (flags.microbatches is None or flags.parts is not None):
        passes = 2
    if passes is not None and (passes < 2 or passes % 2):
        name = "times" if flags.passes is None else "passes"
        raise ValueError(
            f"{name} = {passes} is not an even number of at least 2, and gems alternates between two pipes: "
            f"use {max(2, passes + passes % 2)}"
        )
    if passes is None:
        assert flags.microbatches is not None
        return None, flags.microbatches
    product = None if flags.microbatches is not None and flags.parts is None else passes * parts
    named = {"microbatches": flags.microbatches, f"passes x parts = {passes} x {parts}": product}
    return passes, _degree("microbatches", _agreed("the microbatches of a step", named))


def _batch(flags: Flags, schedule: str, microbatches: int, passes: int | None) -> int | None:
    if flags.batch_size is not None:
        require_degree("batch_size", flags.batch_size)
    if flags.microbatch_size is not None:
        require_degree("microbatch_size", flags.microbatch_size)
    times = (passes or microbatches) if schedule == "gems" else 1
    whole = None if flags.batch_size is None else times * flags.batch_size
    summed = None if flags.microbatch_size is None else microbatches * flags.microbatch_size
    name = "batch_size" if times == 1 else f"batch_size x passes = {flags.batch_size} x {times}"
    other = f"microbatch_size x microbatches = {flags.microbatch_size} x {microbatches}"
    return _agreed("the samples of a step", {name: whole, other: summed})


def _recompute(flags: Flags) -> str:
    checkpointing = {None: None, True: "all", False: "none"}[flags.activation_checkpointing]
    merak = TRAIN_SCHEDULES[flags.train_schedule][1] if flags.train_schedule else None
    if merak == "but-last" and checkpointing == "all":
        checkpointing = None  # Merak's schedule then decides which stages
    named = {
        "recompute": flags.recompute,
        f"activation_checkpointing = {str(flags.activation_checkpointing).lower()}, so recompute": checkpointing,
        f"train_schedule = {flags.train_schedule}, so recompute": None if merak == "none" else merak,
    }
    # Early recompute with nothing to recompute would be 1f1b.
    early = "but-last" if flags.schedule == "early-recompute-1f1b" else "none"
    return _agreed("which stages recompute", named) or early


# -- stages --------------------------------------------------------------------------------------------------------


def _places(flags: Flags, chunks: int) -> int:
    """How many stages stand in one pipe."""
    given = _agreed("the number of stages", {"split_size": flags.split_size, "pp": flags.pp})
    if given is not None:
        require_degree("split_size" if flags.split_size is not None else "pp", given)
        return given
    listed = _listed(flags)
    if listed is not None:
        return max(1, len(listed) // chunks)
    return 4 if flags.model is not None else 2


def _listed(flags: Flags) -> tuple[int, ...] | None:
    """Layers per stage, where --balance or a custom list says them (unchecked)."""
    if flags.balance is not None:
        return whole_numbers("balance", flags.balance)
    if flags.partition_method is not None and flags.partition_method.startswith("custom:"):
        bounds = whole_numbers("custom", flags.partition_method.removeprefix("custom:"))
        return tuple(b - a for a, b in pairwise(bounds))
    return None


def _ranges(
    flags: Flags,
    stages: int,
    layers: int | None,
    costs: Sequence[float] | None,
    parameters: Sequence[float] | None,
    kinds: Sequence[str] | None,
) -> Ranges:
    method = flags.partition_method
    if flags.balance is not None:
        if method not in (None, "balance"):
            raise ValueError(
                f"balance = {flags.balance} and partition_method = {method!r} both choose the layers of each stage: "
                f"give one of them"
            )
        method = f"balance:{flags.balance}"
    listed = _listed(flags)
    if layers is None and listed is not None:
        layers = max(sum(listed), stages)  # at least a layer per stage: a list too short is then told its length
    if layers is None:
        layers = next((len(known) for known in (costs, parameters, kinds) if known is not None), stages)
    return partition(method or "uniform_floor", layers, stages, costs=costs, parameters=parameters, kinds=kinds)


def _tiles(flags: Flags, places: int) -> list[tuple[int, int]]:
    """The grids of the spatial stages, which come first."""
    if flags.num_spatial_parts is None and flags.spatial_size is None:
        return []
    size = 1 if flags.spatial_size is None else flags.spatial_size
    if size == 0 and flags.num_spatial_parts is None:
        return []
    if size < 0:
        raise ValueError(f"spatial_size = {size} is below 0: use 0 for no spatial stage, or more")
    if size == 0:
        raise ValueError(
            f"spatial_size = {size} leaves no stage for num_spatial_parts = {flags.num_spatial_parts}: "
            f"use 1 or more, or leave num_spatial_parts out"
        )
    if size > places:
        raise ValueError(
            f"spatial_size = {size} is more than the {places} stages: use at most {places}, or more stages"
        )
    parts = whole_numbers("num_spatial_parts", 4 if flags.num_spatial_parts is None else flags.num_spatial_parts)
    if len(parts) == 1:
        parts *= size
    if len(parts) != size:
        raise ValueError(
            f"num_spatial_parts has {len(parts)} numbers but spatial_size = {size}: give one number per spatial stage, "
            f"or spatial_size = {len(parts)}"
        )
    return [tile_grid(count, flags.slice_method) for count in parts]


def _image(flags: Flags) -> tuple[int, ...] | None:
    if flags.image_size is None:
        return None
    sizes = whole_numbers("image_size", flags.image_size)
    if len(sizes) > 2:
        raise ValueError(
            f"image_size has {len(sizes)} numbers, not 1 or 2: write 512, or 512,384 for height and width; a volume's "
            f"size stands in a plan.toml, e.g. image = [512, 512, 64]"
        )
    for size in sizes:
        require_degree("image_size", size)
    return sizes if len(sizes) == 2 else (sizes[0], sizes[0])


# -- pieces --------------------------------------------------------------------------------------------------------


def _agreed(what: str, named: dict[str, V | None]) -> V | None:
    """The one value several flags name, or None where none does; two that differ are refused."""
    given = {name: value for name, value in named.items() if value is not None}
    if len(set(given.values())) > 1:
        name, value = next(iter(given.items()))
        other, second = next(item for item in given.items() if item[1] != value)
        raise ValueError(
            f"{name} = {value} and {other} = {second} both say {what}: give one of them, or make them equal"
        )
    return next(iter(given.values()), None)


def _degree(name: str, value: int | None) -> int:
    if value is None:
        return 1
    require_degree(name, value)
    return value
