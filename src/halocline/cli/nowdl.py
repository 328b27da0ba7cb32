"""now-dl's benchmark scripts: its flags, its defaults and the lines it prints, over the one trainer.

Images per second count the effective batch: all samples of a step, of all passes and replicas.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from halocline.cli import one_line
from halocline.cli.options import help_parser, read_options
from halocline.train.progress import Silent, Standing
from halocline.train.settings import Settings

DEFAULTS: dict[str, Any] = {
    "batch_size": 32,
    "stages": 2,
    "image_size": "32",
    "optimizer": "sgd",
    "lr": 0.001,
    "save_every": 0,
}
TILED = "num_spatial_parts spatial_size slice_method tiles local_DP lanes halo_D2 fused_layers fused".split()
"""Without effect in the scripts that do not tile, as in now-dl."""
CELLS = "num_layers num_filters".split()
"""Without effect in ResNet's scripts, as in now-dl."""


@dataclass(frozen=True)
class Options:
    """now-dl's benchmark of a model, with now-dl's flags and defaults; takes the flags of halocline train, too."""

    settings: Settings = field(default_factory=Settings)


def main(model: str, *, spatial: bool = False, gems: bool = False, words: Sequence[str] | None = None) -> None:
    """Run a benchmark script: `model` on tiles (`spatial`), in two mirrored pipes (`gems`), or both."""
    words = sys.argv[1:] if words is None else words
    try:
        settings = settings_of(model, words, spatial, gems)
        if settings is not None:
            sys.exit(_start(settings))
    except (ValueError, OSError) as error:
        print(f"{sys.argv[0]}: error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)


def _start(settings: Settings) -> int:
    from halocline.train.start import start  # torch takes a while: wrong flags have been answered by now

    with tempfile.TemporaryDirectory(prefix="halocline-benchmark-") as directory:
        return start(settings.but(run_dir=directory), partial(NowdlLines, verbose=settings.run.verbose))


def settings_of(model: str, words: Sequence[str], spatial: bool, gems: bool) -> Settings | None:
    """The settings of a command line; None if it asked for help, which is then printed."""
    if "-h" in words or "--help" in words:
        help_parser(Options, sys.argv[0], dialect="now-dl", defaults=DEFAULTS).print_help()
        return None

    def adapt(said: dict[str, Any]) -> None:
        ignored = [*(TILED if not spatial else ()), *(CELLS if not model.startswith("amoebanet") else ())]
        for name in [*ignored, *(() if gems else ("times",))]:
            said.pop(name, None)
        if spatial and "tiles" not in said:
            said.setdefault("num_spatial_parts", "4")
        if gems:
            said |= {"schedule": "gems", "times": max(2, said.get("times", said.get("passes", 2)))}

    return read_options(Options, words, defaults=DEFAULTS, adapt=adapt).settings.but(model=model)


class NowdlLines(Silent):
    """now-dl's lines, printed by rank 0; `verbose`, with the time, the loss and the memory of every step."""

    def __init__(self, rank: int, verbose: bool = False) -> None:
        self.rank, self.verbose = rank, verbose
        self.speeds: list[float] = []
        self.losses: list[float] = []
        self.epoch = 0

    def show(self, reading: Standing) -> None:
        if self.rank:
            return
        if not self.speeds:
            print(f"Effective batch size: {reading.samples}", flush=True)
        if reading.epoch != self.epoch:
            self.losses, self.epoch = [], reading.epoch
        speed = reading.samples / reading.seconds
        self.speeds.append(speed)
        self.losses.append(reading.loss)
        print(f"Epoch: {reading.epoch} images per sec:{speed}", flush=True)
        if self.verbose:
            print(reading.line(timed=True), flush=True)

    def say(self, text: str) -> None:
        if not self.rank:
            print(text, flush=True)

    def evaluated(self, text: str) -> None:
        if self.losses:  # not so where all steps were taken already
            text = f"Epoch: {self.epoch} Global loss: {statistics.fmean(self.losses)} {text}"
        self.say(text)

    def close(self) -> None:
        if not self.rank and self.speeds:
            print(f"Mean {statistics.fmean(self.speeds)} Median {statistics.median(self.speeds)}", flush=True)
