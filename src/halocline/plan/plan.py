"""The plan: who does what. Stages, tiles, lanes, tensor degree, pipes, replicas, microbatches and the schedule's name.

A plan knows no rank numbers (see layout) and no order (see the schedule room). It is checked when it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halocline.plan.require import require_choice, require_degree, require_type
from halocline.plan.stage import Stage

SCHEDULES = ("layer", "gpipe", "1f1b", "interleaved", "zb-h1", "early-recompute-1f1b", "gems", "chimera", "capped")
"""The schedules a plan may name; each is a file of the schedule room."""

MIRRORED = ("gems", "chimera")
"""Schedules that need two pipes running in opposite directions."""


@dataclass(frozen=True)
class Plan:
    """Everything that decides who computes what; frozen, checked, and kept as TOML."""

    stages: tuple[Stage, ...]
    """The stages, first layer to last."""
    schedule: str = "1f1b"
    """The order of work: layer, gpipe, 1f1b, interleaved, zb-h1, early-recompute-1f1b, gems, chimera or capped."""
    microbatches: int = 1
    """Microbatches of one step in one replica, over both pipes."""
    pipes: int = 1
    """1, or 2 for a second pipe that runs the other way (gems and chimera need it)."""
    replicas: int = 1
    """Data-parallel copies of everything above."""
    chunks: int = 1
    """Stages per rank when interleaved: stage s shares its ranks with s + D, s + 2D, ... (D = stages / chunks)."""
    passes: int | None = None
    """gems only: how many passes through the pipes the microbatches form; one microbatch each when left out."""
    cap: float | None = None
    """capped only: the most activations a rank may hold, in microbatches of one stage (or bytes, if costs are)."""
    fused: int = 0
    """Blocks that share one halo exchange in tiled stages (D2); 0 exchanges before each layer."""
    batch: int | None = None
    """Samples of one step in one replica."""
    image: tuple[int, ...] | None = None
    """Height and width (or length; or height, width, depth) of the image."""

    def __post_init__(self) -> None:
        self._check_stages()
        require_choice("schedule", self.schedule, SCHEDULES)
        require_degree("microbatches", self.microbatches)
        require_degree("replicas", self.replicas)
        require_degree("chunks", self.chunks)
        self._check_pipes()
        self._check_chunks()
        self._check_passes()
        self._check_cap()
        if self.schedule == "capped" and self.pipes == 2 and self.microbatches < 2:
            raise ValueError("microbatches = 1 leaves the second pipe empty: use microbatches = 2 or pipes = 1")
        require_type("fused", self.fused, int, "0, or the number of blocks per exchange")
        if self.fused < 0:
            raise ValueError(f"fused = {self.fused} is below 0: use 0 to exchange before each layer")
        self._check_batch()
        self._check_image()

    # -- derived -------------------------------------------------------------------------------------------------

    @property
    def layers(self) -> int:
        return self.stages[-1].layers[1]

    @property
    def places(self) -> int:
        """D: how many teams stand in one pipe. With chunks, each team holds several stages."""
        return len(self.stages) // self.chunks

    @property
    def ranks_per_replica(self) -> int:
        return sum(stage.team_size for stage in self.stages[: self.places])

    @property
    def world_size(self) -> int:
        return self.replicas * self.ranks_per_replica

    def pipe_of(self, microbatch: int) -> int:
        """Which pipe a microbatch runs in: gems alternates by pass, others by microbatch."""
        if self.pipes == 1:
            return 0
        if self.schedule == "gems":
            return (microbatch // self.microbatches_per_pass) % 2
        return microbatch % 2

    @property
    def microbatches_per_pass(self) -> int:
        return self.microbatches // (self.passes or self.microbatches)

    # -- in and out ----------------------------------------------------------------------------------------------

    @classmethod
    def uniform(cls, stages: int, **fields: Any) -> Plan:
        """A plan of `stages` plain single-layer stages: what the simulator takes when no model is named."""
        require_degree("stages", stages)
        return cls(stages=tuple(Stage((s, s + 1)) for s in range(stages)), **fields)

    @classmethod
    def from_flags(cls, flags: str | Sequence[str] | None = None, *, layers: int | None = None, **fields: Any) -> Plan:
        """The plan that flags describe: `Plan.from_flags(stages=3, tiles="2x2")`, or a command line, also now-dl's or
        Merak's. `layers` counts the model's."""
        from halocline.plan.flags.dialects import plan_from_flags

        return plan_from_flags(flags, layers=layers, **fields)

    @classmethod
    def from_toml(cls, text: str) -> Plan:
        from halocline.plan.toml import read

        return read(text)

    def to_toml(self) -> str:
        from halocline.plan.toml import write

        return write(self)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors put a mark before the text
        try:
            return cls.from_toml(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_toml(), encoding="utf-8")

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_stages(self) -> None:
        require_type("stages", self.stages, tuple, "at least one stage")
        if not self.stages:
            raise ValueError(
                "stages has 0 entries: a plan needs at least 1 stage, e.g. [[stages]] with layers = [0, 1]"
            )
        end = 0
        for index, stage in enumerate(self.stages):
            require_type(f"stages[{index}]", stage, Stage, "a Stage")
            if stage.layers[0] != end:
                raise ValueError(
                    f"stages[{index}].layers starts at {stage.layers[0]} but the layer before it ends at {end}: "
                    f"start it at {end}"
                )
            end = stage.layers[1]
        dims = {len(stage.tiles) for stage in self.stages if stage.tile_count > 1}
        if len(dims) > 1:
            raise ValueError(
                f"stages have tile grids of {min(dims)} and of {max(dims)} dims: give every stage the same number, "
                f"with 1 for a dim that is not cut"
            )
        # Who does not cut a volume need not say in how many dims.
        uncut = (1,) * max(dims, default=2)
        stages = (stage if stage.tile_count > 1 else replace(stage, tiles=uncut) for stage in self.stages)
        object.__setattr__(self, "stages", tuple(stages))

    def _check_pipes(self) -> None:
        require_type("pipes", self.pipes, int, "1 or 2")
        if self.pipes not in (1, 2):
            raise ValueError(f"pipes = {self.pipes}: use 1, or 2 for a mirrored pipe")
        if self.schedule in MIRRORED and self.pipes != 2:
            raise ValueError(
                f"schedule = {self.schedule!r} runs two mirrored pipes but pipes = {self.pipes}: use pipes = 2"
            )
        if self.pipes == 2 and self.schedule not in (*MIRRORED, "capped"):
            raise ValueError(
                f"pipes = 2 but schedule = {self.schedule!r} runs 1: use pipes = 1, or schedule gems, chimera or capped"
            )
        if self.schedule == "chimera":
            stages = len(self.stages)
            if stages % 2:
                raise ValueError(
                    f"schedule = 'chimera' needs an even number of stages, not {stages}: "
                    f"use {stages - 1 or stages + 3} or {stages + 1}, or schedule gems, which takes any number"
                )
            if self.microbatches % 2:
                raise ValueError(
                    f"schedule = 'chimera' shares the microbatches between two pipes and {self.microbatches} is odd: "
                    f"use {self.microbatches + 1}"
                )

    def _check_chunks(self) -> None:
        if self.schedule == "interleaved":
            if self.chunks < 2:
                raise ValueError(
                    f"schedule = 'interleaved' with chunks = {self.chunks} is 1f1b: use chunks = 2 or more, or 1f1b"
                )
        elif self.chunks != 1:
            raise ValueError(
                f"chunks = {self.chunks} but schedule = {self.schedule!r} takes 1: use schedule interleaved"
            )
        stages = len(self.stages)
        if stages % self.chunks:
            raise ValueError(
                f"stages = {stages} do not divide into chunks = {self.chunks} ({stages} % {self.chunks} = "
                f"{stages % self.chunks}): use {stages - stages % self.chunks or self.chunks} stages or other chunks"
            )
        places = self.places
        for index, stage in enumerate(self.stages[places:], start=places):
            twin = self.stages[index % places]
            if stage.shape != twin.shape:
                raise ValueError(
                    f"stages[{index}] sits on the ranks of stages[{index % places}] but has (tiles, lanes, tensor) = "
                    f"{stage.shape} and not {twin.shape}: give them the same"
                )
        if self.schedule == "interleaved" and self.microbatches % places:
            raise ValueError(
                f"microbatches = {self.microbatches} is not a multiple of stages / chunks = {places}, which schedule "
                f"'interleaved' needs ({self.microbatches} % {places} = {self.microbatches % places}): "
                f"use {self.microbatches - self.microbatches % places + places}"
            )

    def _check_passes(self) -> None:
        if self.schedule != "gems":
            if self.passes is not None:
                raise ValueError(
                    f"passes = {self.passes} belongs to schedule gems, not {self.schedule!r}: leave it out"
                )
            return
        passes = self.microbatches if self.passes is None else self.passes
        require_type("passes", passes, int, "an even number of at least 2")
        if passes < 2 or passes % 2:
            name = "passes" if self.passes is not None else "microbatches"
            raise ValueError(
                f"{name} = {passes} is not an even number of at least 2, and schedule 'gems' alternates between two "
                f"pipes: use {max(2, passes + passes % 2)}"
            )
        if self.microbatches % passes:
            raise ValueError(
                f"microbatches = {self.microbatches} do not divide into passes = {passes} "
                f"({self.microbatches} % {passes} = {self.microbatches % passes}): use microbatches = "
                f"{max(passes, self.microbatches - self.microbatches % passes)}"
            )

    def _check_cap(self) -> None:
        if self.cap is None:
            return
        if self.schedule != "capped":
            raise ValueError(f"cap = {self.cap} but schedule = {self.schedule!r} has none: use schedule capped")
        require_type("cap", self.cap, float, "a number above 0")
        if not self.cap > 0:
            raise ValueError(f"cap = {self.cap} is not above 0: a rank must hold at least one activation, use cap = 1")

    def _check_batch(self) -> None:
        if self.batch is None:
            return
        require_degree("batch", self.batch)
        if self.batch < self.microbatches:
            raise ValueError(
                f"batch = {self.batch} samples cannot fill microbatches = {self.microbatches}: "
                f"use microbatches = {self.batch} or fewer, or a larger batch"
            )
        lanes = max(stage.lanes for stage in self.stages)
        smallest = self.batch // self.microbatches
        if smallest < lanes:
            raise ValueError(
                f"lanes = {lanes} cannot share a microbatch of {smallest} samples (batch {self.batch} / microbatches "
                f"{self.microbatches}): use at most {smallest} lanes or a batch of {lanes * self.microbatches}"
            )

    def _check_image(self) -> None:
        if self.image is None:
            return
        require_type("image", self.image, tuple, "height and width, e.g. [512, 512]")
        if not self.image:
            raise ValueError("image has 0 dims: give height and width, e.g. [512, 512]")
        for size in self.image:
            require_degree("image", size)
        for index, stage in enumerate(self.stages):
            if stage.tile_count == 1:
                continue
            if len(stage.tiles) != len(self.image):
                raise ValueError(
                    f"stages[{index}].tiles has {len(stage.tiles)} dims and the image {len(self.image)}: "
                    f"give one number per dim"
                )
            for name, count, size in zip(("height", "width", "depth"), stage.tiles, self.image):
                if count > size:
                    raise ValueError(
                        f"stages[{index}].tiles cuts the image's {name} of {size} pixels into {count} tiles: "
                        f"use at most {size}, or a larger image"
                    )
