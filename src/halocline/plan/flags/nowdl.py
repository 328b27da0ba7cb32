"""now-dl's (MPI4DL's) flags: what each is called here, and what it means where a name alone does not say it.

Flags that now-dl shares with Halocline by name (`--batch-size`, `--image-size`, `--balance`, `--num-layers`,
`--num-filters`, `--num-classes`, `--verbose`) stand in no table.
"""

from __future__ import annotations

from math import prod
from typing import Any

from halocline.plan.flags.reader import Foreign, Said
from halocline.plan.partition import whole_numbers
from halocline.plan.require import require_choice, require_degree
from halocline.plan.stage import SLICE_METHODS, grids_of, tile_grid

FLAGS = (
    Foreign("split_size", int, "stages", "Number of stages in a pipe (left out: 2)."),
    Foreign("parts", int, "microbatches", "Microbatches of a batch; with gems, of one pass."),
    Foreign(
        "num_spatial_parts", str, "tiles", "Tiles of each spatial stage: a number, or one per spatial stage, as 4,2."
    ),
    Foreign("spatial_size", int, "tiles", "How many of the first stages have tiles."),
    Foreign(
        "slice_method", str, "tiles", "square, vertical (the width into columns) or horizontal (the height into rows)."
    ),
    Foreign("times", int, "passes", "Passes of gems in one step; above 1 it chooses gems, also --schedule gems."),
    Foreign("local_DP", int, "lanes", "How many ranks share each stage without tiles, splitting its samples."),
    Foreign("halo_D2", bool, "fused", "Exchange one wide halo for --fused-layers blocks."),
    Foreign("fused_layers", int, "fused", "With --halo-D2: blocks that share one halo exchange."),
    Foreign("num_epochs", int, "epochs", "Number of epochs."),
    Foreign("num_workers", int, "workers", "Processes that load data, per rank.", least=0),
    Foreign("app", int, "data", "1: --data DATAPATH, 2: --data cifar10:DATAPATH, 3: --data synthetic."),
    Foreign("datapath", str, "data", "Where the data of --app 1 and 2 lies."),
    Foreign("lesions", bool, "data", "As --data lesions."),
    Foreign("enable_master_comm_opt", bool, "", "Does nothing: gradients are always summed while backwards run."),
)
DATA = {1: "{}", 2: "cifar10:{}", 3: "synthetic"}


def translate(said: Said) -> None:
    """Say it in Halocline's own words."""
    flags = said.foreign
    said.same("split_size", "local_DP", "num_workers")
    if "steps" not in said.words:  # which says when to end more closely
        said.same("num_epochs")
    require_degree("fused_layers", flags.get("fused_layers", 1))
    if flags.get("halo_D2"):
        said.say("fused", flags.get("fused_layers", 1), "fused_layers")
    if (
        "stages" not in said.words
        and "balance" not in said.words
        and {"num_spatial_parts", "spatial_size", "times"} & flags.keys()
    ):
        said.words["stages"] = 2
    _data(said, flags)
    _tiles(said, flags)
    _microbatches(said, flags)


def _data(said: Said, flags: dict[str, Any]) -> None:
    app = flags.get("app")
    if app not in (None, 1, 2, 3):
        raise ValueError(
            f"app = {app} is not 1, 2 or 3: use 1 for an image folder, 2 for CIFAR-10, 3 for synthetic data"
        )
    if flags.get("lesions"):
        said.say("data", "lesions", "lesions")
    elif app is not None:
        said.say("data", DATA[app].format(flags.get("datapath", "./train")), f"app {app}, so data")


def _tiles(said: Said, flags: dict[str, Any]) -> None:
    """The grids of the spatial stages, which come first."""
    method, parts, size = flags.get("slice_method", "square"), flags.get("num_spatial_parts"), flags.get("spatial_size")
    require_choice("slice_method", method, SLICE_METHODS)
    known = said.words.get("tiles")
    if parts is None and size is None and known is not None and "slice_method" in flags:
        parts, size = ",".join(str(prod(grid)) for grid in grids_of(known)), len(grids_of(known))
    if parts is None and size in (None, 0):
        return
    size = 1 if size is None else size
    if size < 0:
        raise ValueError(f"spatial_size = {size} is below 0: use 0 for no spatial stage, or more")
    if size == 0:
        raise ValueError(
            f"spatial_size = {size} leaves no stage for num_spatial_parts = {parts}: "
            f"use 1 or more, or leave num_spatial_parts out"
        )
    stages = said.words.get("stages")
    if stages is not None and size > stages:
        raise ValueError(
            f"spatial_size = {size} is more than the {stages} stages: use at most {stages}, or more stages"
        )
    counts = whole_numbers("num_spatial_parts", 4 if parts is None else parts)
    if len(counts) == 1:
        counts *= size
    if len(counts) != size:
        raise ValueError(
            f"num_spatial_parts has {len(counts)} numbers but spatial_size = {size}: give one number per spatial "
            f"stage, or spatial_size = {len(counts)}"
        )
    for count in counts:
        require_degree("num_spatial_parts", count)
    grids = tuple(tile_grid(count, method) for count in counts)
    if known is None or grids_of(known) != grids:
        name = next(name for name in ("num_spatial_parts", "spatial_size", "slice_method") if name in flags)
        said.say("tiles", ",".join("x".join(map(str, grid)) for grid in grids), f"{name} = {flags[name]}, so tiles")


def _microbatches(said: Said, flags: dict[str, Any]) -> None:
    """--times and --parts, whose product is what a step of gems has."""
    times, parts = flags.get("times"), flags.get("parts")
    schedule = said.words.get("schedule")
    if times is not None:
        require_degree("times", times)
        if "passes" in said.words:
            said.say("passes", times, "times")  # which must agree
        if times > 1 and schedule not in (None, "gems"):
            raise ValueError(
                f"times = {times} repeats the passes of gems but schedule = {schedule!r} has none: "
                f"use times = 1 or schedule gems"
            )
        schedule = "gems" if times > 1 else schedule
        if schedule == "gems":
            said.words["schedule"] = schedule
            # The replication of now-dl's worked examples: --times 2 is 2, and --times 4 is 4.
            if times % 2:
                fix = f"{times - 1} or {times + 1}" if times > 1 else "2, one in each (GEMS-MAST)"
                raise ValueError(
                    f"times = {times} is not an even number, and gems takes passes in pairs, one down each of its two "
                    f"pipes: use {fix}"
                )
            said.say("passes", times, "times")
    if parts is not None:
        require_degree("parts", parts)
    if schedule != "gems":
        said.same("parts")
    elif parts is not None or (times is not None and "microbatches" not in said.words):
        passes, parts = said.words.setdefault("passes", 2), parts or 1
        said.say("microbatches", passes * parts, f"passes x parts = {passes} x {parts}")
