"""The settings of a plan: what a user says of it, in a few words. The same for every verb that takes a plan.

    PlanSettings(stages=3, tiles="2x2", microbatches=2).plan(layers=12)

Knows numbers of layers; nothing of models. Whatever the plan itself can check is left to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from halocline.plan.flags.fields import setting
from halocline.plan.partition import partition, whole_numbers
from halocline.plan.plan import MIRRORED, SCHEDULES, Plan
from halocline.plan.require import require_choice, require_degree
from halocline.plan.stage import SHARDS, Stage, grids_of

RECOMPUTE = ("none", "all", "but-last")
AUTO = "auto"


@dataclass(frozen=True)
class PlanSettings:
    """plan: who does what"""

    file: str | None = setting(None, flag="plan")
    """A plan.toml that says everything of the plan; other flags may repeat it but not contradict it."""
    stages: int | None = setting(None, common=True)
    """Stages in a pipe. With --chunks each is cut into that many, which share its ranks."""
    tiles: str | None = setting(None, common=True, join="x")
    """Grid of tiles of the first stage, e.g. 2x2, or one per tiled stage, e.g. 2x2,1x2. A number stands for a grid that
    is as square as it can be."""
    lanes: int | None = setting(None, common=True)
    """Ranks that share each stage without tiles, splitting its samples (left out: 1)."""
    tensor: int | None = setting(None, common=True)
    """Ranks that share each weight matrix (left out: 1)."""
    replicas: int | None = setting(None, common=True)
    """Data-parallel copies of everything (left out: 1)."""
    pipes: int | None = None
    """1, or 2 for a mirrored second pipe (left out: 2 for gems and chimera, else 1)."""
    microbatches: int | None = setting(None, common=True)
    """Microbatches of one step, over both pipes."""
    schedule: str | None = setting(None, common=True)
    """layer, gpipe, 1f1b, interleaved, zb-h1, early-recompute-1f1b, gems, chimera or capped (left out: layer for one
    microbatch, else 1f1b)."""
    recompute: str | None = setting(None, common=True)
    """none, all or but-last: which stages keep only their input and recompute the rest (left out: none; but-last for
    early-recompute-1f1b)."""
    batch_size: int | None = setting(None, common=True)
    """Samples of a step in one replica; with gems, of one pass."""
    microbatch_size: int | None = None
    """Samples of a microbatch, in place of --batch-size."""
    image_size: str | None = setting(None, common=True)
    """Height and width of the images: 512 for a square, or 512,384."""
    layers: int | None = None
    """Layers of the model, where nothing else says it; a transformer is made with so many blocks."""
    balance: str | None = None
    """Layers of each stage, e.g. 4,4,4 or custom:0,4,8,12, or how to share them out: uniform, uniform_floor,
    uniform_transformer, parameters, profile (left out: uniform_floor)."""
    chunks: int | None = None
    """interleaved: stages per rank (left out: 2)."""
    passes: int | None = None
    """gems: passes of one step, an even number (left out: one per microbatch)."""
    cap: float | None = None
    """capped: the most activations a rank may hold, in microbatches of one stage, or in bytes where costs are given."""
    fused: int | None = None
    """Blocks that share one halo exchange in tiled stages (left out: 0, one exchange for each layer)."""
    shard: str | None = None
    """none, optimizer or parameters: what the ranks that share a stage divide among them (ZeRO-1 or FSDP)."""
    accumulate: int = 1
    """Batches that one step sums up: the microbatches, that many times."""
    sequence_parallel: bool = False
    """Let tensor ranks share the tokens between the matrices they share."""

    def __post_init__(self) -> None:
        for name in "stages lanes tensor replicas microbatches batch_size microbatch_size layers".split():
            if getattr(self, name) is not None:
                require_degree(name, getattr(self, name))
        require_degree("accumulate", self.accumulate)
        for name, choices in (("schedule", SCHEDULES), ("recompute", RECOMPUTE), ("shard", SHARDS)):
            if getattr(self, name) is not None:
                require_choice(name, getattr(self, name), choices)
        _ = self.image, self.grids

    # -- what single settings mean -------------------------------------------------------------------------------

    @property
    def image(self) -> tuple[int, ...] | None:
        """Height and width."""
        if self.image_size is None:
            return None
        sizes = whole_numbers("image_size", self.image_size)
        if len(sizes) > 2:
            raise ValueError(
                f"image_size has {len(sizes)} numbers, not 1 or 2: write 512, or 512,384 for height and width; a "
                f"volume's size stands in a plan.toml, e.g. image = [512, 512, 64]"
            )
        for size in sizes:
            require_degree("image_size", size)
        return sizes if len(sizes) == 2 else (sizes[0], sizes[0])

    @property
    def grids(self) -> tuple[tuple[int, ...], ...]:
        """The grid of each tiled stage."""
        return () if self.tiles is None else grids_of(self.tiles)

    @property
    def listed(self) -> tuple[int, ...] | None:
        """Layers per stage, where a list says them (unchecked)."""
        name, _, numbers = (self.balance or "").rpartition(":")
        if name == "custom":
            return tuple(b - a for a, b in pairwise(whole_numbers("custom", numbers)))
        return whole_numbers("balance", numbers) if name == "balance" or numbers[:1].isdigit() else None

    # -- the plan ------------------------------------------------------------------------------------------------

    def plan(
        self,
        *,
        layers: int | None = None,
        stages: int = 2,
        costs: Sequence[float] | None = None,
        parameters: Sequence[float] | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Plan:
        """The plan. `layers` are the model's, `stages` a pipe's where nothing is said; `costs`, `parameters` and
        `kinds` hold one entry per layer for the ways of sharing out layers that need them."""
        if self.file is not None:
            return self._accumulated(self._loaded(self.file))
        if None not in (layers, self.layers) and layers != self.layers:
            raise ValueError(f"layers = {self.layers} but the model has {layers}: give one of them, or make them equal")
        layers = layers if layers is not None else self.layers
        passes, microbatches = self._microbatches()
        schedule = self.schedule or ("layer" if microbatches == 1 else "1f1b")
        # Interleaved with one chunk would be 1f1b, so two is the least that the word can mean.
        chunks = (2 if schedule == "interleaved" else 1) if self.chunks is None else self.chunks
        require_degree("chunks", chunks)
        places = self._places(stages, chunks)
        grids, count = self.grids, places * chunks
        if len(grids) > places:
            raise ValueError(f"tiles = {self.tiles} has {len(grids)} grids for {places} stages: give at most {places}")
        if self.listed is not None and layers is None:
            layers = max(sum(self.listed), count)  # a list that is too short is then told its length
        if layers is None:
            layers = next((len(known) for known in (costs, parameters, kinds) if known is not None), count)
        method = self.balance or "uniform_floor"
        ranges = partition(method, layers, count, costs=costs, parameters=parameters, kinds=kinds)
        recompute = self.recompute or ("but-last" if schedule == "early-recompute-1f1b" else "none")
        return self._accumulated(
            Plan(
                stages=tuple(
                    Stage(
                        layers=ranges[s],
                        tiles=grids[s % places] if s % places < len(grids) else (1,) * (len(grids[0]) if grids else 2),
                        lanes=1 if s % places < len(grids) else self.lanes or 1,
                        tensor=self.tensor or 1,
                        recompute=recompute == "all" or (recompute == "but-last" and s < count - 1),
                        shard=self.shard or "none",
                    )
                    for s in range(count)
                ),
                schedule=schedule,
                microbatches=microbatches,
                pipes=self.pipes if self.pipes is not None else 2 if schedule in MIRRORED else 1,
                replicas=self.replicas or 1,
                chunks=chunks,
                passes=passes,
                cap=self.cap,
                fused=self.fused or 0,
                batch=self._batch(schedule, microbatches, passes),
                image=self.image,
            )
        )

    def _places(self, stages: int, chunks: int) -> int:
        """How many stages stand in one pipe."""
        if self.stages is not None:
            return self.stages
        return stages if self.listed is None else max(1, len(self.listed) // chunks)

    @property
    def shape(self) -> Plan:
        """The plan of a model that is not known: which layers go where is the model's matter, but for a list."""
        return replace(self, balance=self.balance if self.listed is not None else None, layers=None).plan()

    def _microbatches(self) -> tuple[int | None, int]:
        """Passes (gems only) and microbatches of a step."""
        if self.schedule == "gems" and self.microbatches is None:
            passes = 2 if self.passes is None else self.passes
            return passes, max(1, passes)
        return self.passes, 1 if self.microbatches is None else self.microbatches

    def _batch(self, schedule: str, microbatches: int, passes: int | None) -> int | None:
        times = (passes or microbatches) if schedule == "gems" else 1
        whole = None if self.batch_size is None else times * self.batch_size
        summed = None if self.microbatch_size is None else microbatches * self.microbatch_size
        if None not in (whole, summed) and whole != summed:
            name = (
                f"batch_size = {whole}"
                if times == 1
                else f"batch_size x passes = {self.batch_size} x {times} = {whole}"
            )
            raise ValueError(
                f"{name} and microbatch_size x microbatches = {self.microbatch_size} x {microbatches} = {summed} both "
                f"say the samples of a step: give one of them, or make them equal"
            )
        return whole if whole is not None else summed

    def _accumulated(self, plan: Plan) -> Plan:
        """The plan of a step that sums up several batches: more microbatches of the same size."""
        if self.accumulate == 1:
            return plan
        return replace(
            plan,
            microbatches=plan.microbatches * self.accumulate,
            passes=None if plan.passes is None else plan.passes * self.accumulate,
            batch=None if plan.batch is None else plan.batch * self.accumulate,
        )

    def _loaded(self, path: str) -> Plan:
        """A plan from a file, if nothing beside it says something else; it may leave the batch and the image open."""
        if path == AUTO:
            raise ValueError("plan = auto chooses no plan yet: say --stages, --tiles and the like, or give a plan.toml")
        try:
            plan = Plan.load(Path(path))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not text (byte {error.start}): give a plan.toml") from error
        for name in ("tiles", "lanes", "tensor", "recompute", "shard", "balance"):
            asked = getattr(self, name)
            if asked is not None:
                raise ValueError(f"--{name} {asked} beside --plan {path}, which says it per stage: leave out --{name}")
        says = {
            name: getattr(plan, name) for name in ("schedule", "microbatches", "pipes", "replicas", "chunks", "passes")
        }
        says |= {"stages": plan.places, "layers": plan.layers, "cap": plan.cap, "fused": plan.fused}
        batch = self._batch("", plan.microbatches, None)
        said = {name: (getattr(self, name), value) for name, value in says.items()}
        said |= {"batch-size": (batch, plan.batch), "image-size": (self.image, plan.image)}
        for name, (asked, value) in said.items():
            if asked is not None and asked != value and (value is not None or name in says):
                raise ValueError(
                    f"--{name} {asked} contradicts {path}, which has {name.removesuffix('-size')} = {value}: leave out "
                    f"--{name}, or change the plan"
                )
        return replace(plan, batch=plan.batch if batch is None else batch, image=self.image or plan.image)
