"""now-dl's benchmark scripts: its flags, its defaults and the lines it prints, over the one trainer.

Images per second count the effective batch: all samples of a step, of all passes and replicas.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Sequence
from functools import partial

from halocline.plan.words import read_words
from halocline.train.config import Config
from halocline.train.progress import Silent, Standing

DEFAULTS = {"batch_size": 32, "parts": 1, "split_size": 2, "image_size": 32}
SPATIAL_DEFAULTS = {"num_spatial_parts": 4, "spatial_size": 1}
SPATIAL_FLAGS = ("num_spatial_parts", "spatial_size", "slice_method", "halo_D2", "fused_layers", "local_DP")
"""Without effect in the scripts that do not tile, as in now-dl."""

AMOEBANET_FLAGS = ("num_layers", "num_filters")
"""Without effect in ResNet's scripts, as in now-dl."""


def main(model: str, *, spatial: bool = False, gems: bool = False, words: Sequence[str] | None = None) -> None:
    """Run a benchmark script: `model` on tiles (`spatial`), in two mirrored pipes (`gems`), or both."""
    words = sys.argv[1:] if words is None else words
    try:
        config = settings(model, words, spatial, gems)
        if config is not None:
            sys.exit(_start(config))
    except (ValueError, OSError) as error:
        print(f"{sys.argv[0]}: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _start(config: Config) -> int:
    from halocline.train.start import start  # torch takes a while: wrong flags have been answered by now

    with tempfile.TemporaryDirectory(prefix="halocline-benchmark-") as directory:
        return start(dataclasses.replace(config, run_dir=directory), partial(NowdlLines, verbose=config.verbose))


def settings(model: str, words: Sequence[str], spatial: bool, gems: bool) -> Config | None:
    """The settings of a command line; None if it asked for help, which is then printed."""
    if "-h" in words or "--help" in words:
        from halocline.cli.help import show_help

        show_help(Config, sys.argv[0])
        return None
    given = read_words(Config, words, positional=(), short={"-v": "verbose"})
    changed: dict[str, object] = {"model": model, "optimizer": "sgd", "lr": 0.001, "save_every": 0}
    defaults = {field.name: field.default for field in dataclasses.fields(Config)}
    for name, value in {**DEFAULTS, **(SPATIAL_DEFAULTS if spatial else {})}.items():
        if getattr(given, name) is None:
            changed[name] = value
    if not spatial:
        changed |= {name: defaults[name] for name in SPATIAL_FLAGS}
    if not model.startswith("amoebanet"):
        changed |= dict.fromkeys(AMOEBANET_FLAGS)
    changed["times"] = max(2, given.times or 2) if gems else None
    if gems:
        changed["schedule"] = "gems"
    return dataclasses.replace(given, **changed)  # type: ignore[arg-type]


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
