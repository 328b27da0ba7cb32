"""The flags of now-dl's and Merak's command lines, with their meanings, and Halocline's own beside them.

The docstring under a field is its help. A flag left out is None where that means something else than any value.
What no plan needs (epochs, data, model sizes, profiling) is kept here for the programs that do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halocline.plan.grid import SLICE_METHODS
from halocline.plan.plan import SCHEDULES
from halocline.plan.require import require_choice, require_degree
from halocline.plan.stage import SHARDS
from halocline.plan.words import read_words

TRAIN_SCHEDULES = {
    "1f1b": ("1f1b", "none"),
    "early_recompute_1f1b": ("early-recompute-1f1b", "but-last"),
    "last_no_recompute_1f1b": ("1f1b", "but-last"),
    # These two differ from 1f1b in the clock of the GPU, which is not the plan's business.
    "full_critical_path_1f1b": ("1f1b", "none"),
    "instruction_profiler": ("1f1b", "none"),
}
"""Merak's schedules: the schedule each runs and which stages recompute."""

RECOMPUTE = ("none", "all", "but-last")


@dataclass(frozen=True)
class Flags:
    """One command line of now-dl, Merak or Halocline."""

    # -- now-dl: stages, tiles, pipes

    split_size: int | None = None
    """Number of stages in a pipe (left out: as many as --balance or custom: lists, else 2)."""
    parts: int | None = None
    """Microbatches of a batch (left out: 1)."""
    balance: str | None = None
    """Layers per stage, e.g. 4,4,4: one number per stage, their sum the number of layers."""
    num_spatial_parts: str | int | None = None
    """Tiles of each spatial stage: a number, or one per spatial stage, e.g. 4,2 (left out: 4 with --spatial-size)."""
    spatial_size: int | None = None
    """How many of the first stages are spatial (left out: 1 with --num-spatial-parts, else 0)."""
    slice_method: str = "square"
    """How an image is cut: square, vertical (the width into columns) or horizontal (the height into rows)."""
    times: int | None = None
    """Passes of gems in one step, an even number: above 1 it chooses gems, whose batch is times x --batch-size."""
    local_DP: int | None = None
    """Lanes: how many ranks share each stage that is not spatial, splitting its samples (left out: 1)."""
    halo_D2: bool = False
    """Exchange one wide halo for --fused-layers blocks instead of a halo for each layer."""
    fused_layers: int = 1
    """With --halo-D2: blocks that share one halo exchange."""
    batch_size: int | None = None
    """Samples of a batch; with gems, of one pass."""
    image_size: str | int | None = None
    """Height and width of the images: 512 for a square, or 512,384."""
    enable_master_comm_opt: bool = False
    """GEMS: exchange gradients pairwise inside the bubbles instead of in one reduction at the end."""

    # -- Merak: degrees, partition, schedule

    pp: int | None = None
    """Number of stages, as --split-size (left out: 4 where MODEL is given)."""
    dp: int | None = None
    """Replicas, as --replicas."""
    tp: int | None = None
    """Tensor-parallel degree of every stage (left out: 1)."""
    partition_method: str | None = None
    """uniform, uniform_floor, uniform_transformer, parameters, custom:0,8,14,20,26, profile (or autopipe)."""
    train_schedule: str | None = None
    """1f1b, early_recompute_1f1b, last_no_recompute_1f1b, full_critical_path_1f1b or instruction_profiler."""
    activation_checkpointing: bool | None = None
    """true: keep only the input of each stage and recompute the rest, as --recompute all."""
    model: str | None = None
    """The first word of a Merak command line: the model's name."""
    microbatch_size: int | None = None
    """The second word of a Merak command line: samples of a microbatch."""

    # -- Halocline

    schedule: str | None = None
    """layer, gpipe, 1f1b, interleaved, zb-h1, early-recompute-1f1b, gems, chimera or capped (left out: layer for one
    microbatch, gems for --times above 1, else 1f1b)."""
    microbatches: int | None = None
    """Microbatches of one step, over both pipes; the third word of a Merak command line."""
    replicas: int | None = None
    """Data-parallel copies of everything (left out: 1)."""
    pipes: int | None = None
    """1, or 2 for a mirrored second pipe (left out: 2 for gems and chimera, else 1)."""
    chunks: int | None = None
    """Stages per rank with schedule interleaved: there are --split-size x --chunks stages (left out: 2)."""
    passes: int | None = None
    """gems: passes of one step; --times by its own name."""
    cap: float | None = None
    """capped: the most activations a rank may hold, in microbatches of one stage."""
    recompute: str | None = None
    """none, all or but-last: which stages keep only their input and recompute the rest (left out: none; but-last
    for early recompute)."""
    shard: str | None = None
    """none, optimizer or parameters: what the ranks that share a stage divide among them (ZeRO-1 or FSDP; left out:
    none)."""
    layers: int | None = None
    """Number of layers of the model, where no --balance or custom: list says it."""

    # -- for the programs that train

    num_epochs: int = 1
    """Number of epochs."""
    num_layers: int = 18
    """AmoebaNet: number of normal cells."""
    num_filters: int = 416
    """AmoebaNet: number of filters."""
    num_classes: int = 10
    """Number of classes."""
    num_workers: int = 0
    """Processes that load data, per rank."""
    app: int = 3
    """The data: 1 images under --datapath, 2 CIFAR-10, 3 synthetic."""
    datapath: str = "./train"
    """Where the data lies."""
    verbose: bool = False
    """Print the time of each step. Also -v."""
    num_warmup_steps: int = 5
    """Steps before measuring starts."""
    num_prof_steps: int = 30
    """Steps measured for each frequency plan."""
    export_timing_csv: bool = False
    """Write instructions-R.csv and time-energy-R.csv for each rank R."""
    export_pytorch_trace: bool = False
    """Write a PyTorch profiler trace."""
    perseus_url: str | None = None
    """Address of the server that hands out frequency plans, e.g. http://localhost:7787."""
    energy_breakdown: bool = False
    """Report energy per instruction."""

    def __post_init__(self) -> None:
        require_choice("slice_method", self.slice_method, SLICE_METHODS)
        if self.schedule is not None:
            require_choice("schedule", self.schedule, SCHEDULES)
        if self.train_schedule is not None:
            require_choice("train_schedule", self.train_schedule, TRAIN_SCHEDULES)
        if self.recompute is not None:
            require_choice("recompute", self.recompute, RECOMPUTE)
        if self.shard is not None:
            require_choice("shard", self.shard, SHARDS)
        for name in ("fused_layers", "num_epochs", "num_layers", "num_filters", "num_classes", "num_prof_steps"):
            if getattr(self, name) is not None:  # a program may leave a model's sizes to the model
                require_degree(name, getattr(self, name))
        for name in ("num_workers", "num_warmup_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)} is below 0: use 0 for none")
        if self.app not in (1, 2, 3):
            raise ValueError(
                f"app = {self.app} is not 1, 2 or 3: use 1 for an image folder, 2 for CIFAR-10, 3 for synthetic data"
            )

    @classmethod
    def read(cls, words: Sequence[str]) -> Flags:
        """The flags in a command line, split into words: now-dl's, or Merak's with MODEL MICROBATCH_SIZE
        NUM_MICROBATCHES in front."""
        return read_words(cls, words, positional=("model", "microbatch_size", "microbatches"), short={"-v": "verbose"})
