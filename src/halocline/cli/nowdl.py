"""now-dl's benchmark scripts: its flags, its defaults and the lines it prints, over the one trainer.

Images per second count the effective batch: all samples of a step, of all passes and replicas.
"""

from __future__ import annotations

import statistics
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from halocline.cli import one_line
from halocline.cli.options import METAVARS, read_options
from halocline.plan.flags.dialects import FOREIGN
from halocline.plan.flags.fields import settings_of
from halocline.plan.flags.reader import spelled
from halocline.runtime.processes.environment import detect
from halocline.schedule.events import Mark
from halocline.schedule.instruction import STEP, Instruction
from halocline.train.progress import Silent, Standing
from halocline.train.settings import SHAPE, ModelSettings, Settings

DEFAULTS: dict[str, Any] = {
    "batch_size": 32,
    "stages": 2,
    "image_size": "32",
    "mean": "0.5,0.5,0.5",
    "std": "0.5,0.5,0.5",
    "evaluation_fraction": 0.0,
    "optimizer": "sgd",
    "lr": 0.001,
    "save_every": 0,
    "train_scores": True,
}
LEFT_OUT = {
    "split_size": 2,
    "parts": 1,
    "replicas": 1,
    "recompute": "none",
    "num_spatial_parts": "4",
    "spatial_size": 1,
    "slice_method": "square",
    "fused_layers": 1,
    "times": 1,
    "local_DP": 1,
    "num_layers": 18,
    "num_filters": 416,
    "num_classes": 10,
    "num_epochs": 1,
    "num_workers": 0,
    "app": 3,
    "datapath": "./train",
}
"""What now-dl's flags are where they are left out, for people; the settings say it in Halocline's words."""
TILES = "num_spatial_parts spatial_size slice_method halo_D2 fused_layers tiles fused".split()
CELLS = "num_layers num_filters".split()
OTHERS = {
    *(one.flag for one in settings_of(ModelSettings).values()),
    *("from_hf", "to_hf", "objective", "tokenizer", "sequence_parallel"),
} - {"num_classes", "model_options", *CELLS}
"""Of other models, to which these scripts have no way."""
PAGE: dict[str, dict[str, str]] = {
    "plan": {
        "split_size": "stages that the model is cut into",
        "parts": "microbatches of a batch; of GEMS, of one pass",
        "balance": "layers of each stage, e.g. 20,18",
        "local_DP": "ranks that share each stage without tiles",
        "replicas": "data-parallel copies of everything",
        "schedule": "order of the microbatches; left out: layer for one, else 1f1b",
        "recompute": "stages that keep only their input: none, all or but-last",
    },
    "tiles": {
        "num_spatial_parts": "tiles of each spatial stage: one number, or e.g. 4,2",
        "spatial_size": "stages that have tiles, the first ones",
        "slice_method": "square, vertical (columns) or horizontal (rows)",
        "halo_D2": "exchange one wide halo for several blocks",
        "fused_layers": "with --halo-D2: how many blocks",
    },
    "gems": {
        "times": "passes of a step: 1 or 2 is MAST, one in each pipe; MASTER 4, 6, ...",
        "enable_master_comm_opt": "changes nothing: gradients are always summed beside backwards",
    },
    "model": {
        "num_layers": "normal cells",
        "num_filters": "filters",
        "num_classes": "classes",
    },
    "images": {
        "batch_size": "images of a step in one replica; of GEMS, of one pass",
        "image_size": "height and width: 512, or 512,384",
        "app": "1: images in folders, 2: CIFAR-10, 3: synthetic images",
        "datapath": "where those of --app 1 and 2 lie",
        "num_workers": "processes that load images, per rank",
        "samples": "synthetic images of an epoch; left out: 10 batches",
        "augment": "changes by chance, e.g. flip,pad=4",
        "mean": "subtracted from each channel, whose values lie in [0, 1]",
        "std": "what each channel is then divided by",
        "evaluation_fraction": "share of the images that is kept for evaluation",
    },
    "run": {
        "num_epochs": "epochs",
        "steps": "optimizer steps, instead of epochs",
        "optimizer": "sgd or adamw",
        "lr": "learning rate",
        "dtype": "float32, float64 or bf16",
        "device": "cpu, cuda, or auto: a GPU if there is one",
        "seed": "of weights, images and their order",
        "run_dir": "where everything goes; left out: runs/MODEL-DATE-TIME",
        "resume": "go on from a run's directory, or a checkpoint's",
        "save_every": "steps between checkpoints; 0 for none",
        "timeline": "write when each rank did what, for halocline timeline",
        "export_timing_csv": "write instructions-R.csv and time-energy-R.csv for each rank R",
        "verbose": "print loss, accuracy, time and memory of each step; also -v",
        "dry_run": "start nothing: print stages, the proof, predicted time and memory",
    },
}
"""What --help tells, a line for each flag."""


@dataclass(frozen=True)
class Options:
    """What a script is told."""

    settings: Settings = field(default_factory=Settings)
    dry_run: bool = False
    """Start nothing: say what the run would be, with its plan proved and its time and memory predicted."""


@dataclass(frozen=True)
class Script:
    """One of the benchmarks."""

    model: str
    spatial: bool = False
    """Whether it tiles images."""
    gems: bool = False
    """Whether it has two mirrored pipes."""

    @property
    def refused(self) -> dict[str, str]:
        """Flag -> why it says nothing here."""
        family = self.model.partition("-")[0]
        found = dict.fromkeys(OTHERS, f"is for other models, and this script trains {self.model}: use halocline train")
        if not self.spatial:
            found |= dict.fromkeys(TILES, f"is for tiles, and this script has none: use benchmark_{family}_sp.py")
        if family != "amoebanet":
            found |= dict.fromkeys(CELLS, f"is AmoebaNet's, and this script trains {self.model}: leave it out")
        if not self.gems:
            why = f"is for GEMS, and this script has one pipe: use benchmark_{family}_gems_master.py"
            found |= dict.fromkeys(("passes", "times", "enable_master_comm_opt"), why)
        else:
            found["schedule"] = "is gems in this script: leave it out"
        return found

    def adapt(self, said: dict[str, Any]) -> None:
        """Refuse what says nothing here, and say what this script is."""
        if said.get("times") == 1 and said.get("passes") in (None, 2):
            del said["times"]  # now-dl's default: with gems its least, MAST's two passes, and else nothing
        if self.gems and said.get("schedule") == "gems":
            del said["schedule"]
        for name in said.keys() & self.refused.keys():
            raise ValueError(f"{spelled(name)} {self.refused[name]}")
        _require_said_for_something(said)
        words = {FOREIGN[name].native if name in FOREIGN else name for name in said}
        if "plan" in said or ("resume" in said and not words & SHAPE):
            return  # a file, or the run that goes on, says it all
        if self.spatial and "tiles" not in said:
            said.setdefault("num_spatial_parts", LEFT_OUT["num_spatial_parts"])
        if self.gems:
            said["schedule"] = "gems"
            said.setdefault("times", said.get("passes", 2))


def _require_said_for_something(said: dict[str, Any]) -> None:
    """Refuse what another flag leaves without a meaning; now-dl reads over it."""
    given = {**LEFT_OUT, **said}
    if given["app"] not in (1, 2) and given["datapath"] != LEFT_OUT["datapath"]:
        raise ValueError(
            f"--datapath {given['datapath']} is not read where images are synthetic: add --app 1 or --app 2"
        )
    if given["app"] in (1, 2) and "samples" in said:
        raise ValueError(
            f"--samples {said['samples']} is of synthetic images, and --app {given['app']} has its own: leave it out"
        )
    if given["fused_layers"] != 1 and not said.get("halo_D2"):
        raise ValueError(f"--fused-layers {given['fused_layers']} fuses nothing without --halo-D2: add it")


def main(model: str, *, spatial: bool = False, gems: bool = False, words: Sequence[str] | None = None) -> None:
    """Run a benchmark script: `model` on tiles (`spatial`), in two mirrored pipes (`gems`), or both."""
    words = sys.argv[1:] if words is None else words
    script, name = Script(model, spatial, gems), Path(sys.argv[0]).name
    if "-h" in words or "--help" in words:
        print(help_page(script, name))
        sys.exit(0)
    try:
        sys.exit(_run(script, options_of(script, words)))
    except (ValueError, OSError) as error:
        print(f"{name}: error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)


def _run(script: Script, options: Options) -> int:
    settings, known, place = options.settings, None, detect()
    if settings.run.resume is not None and (place is None or place.rank == 0):  # who prints
        from halocline.train.run_directory import resolved

        known = resolved(settings).settings
        if known.model.name != script.model:
            raise ValueError(
                f"--resume {settings.run.resume} trains {known.model.name}, and this script {script.model}: use the "
                f"script that began it, or halocline train --resume {settings.run.resume}"
            )
    if options.dry_run:
        from halocline.cli.dry_run import dry_run

        return dry_run(settings)
    from halocline.train.start import start  # torch takes a while: wrong flags have been answered by now

    return start(settings, partial(NowdlLines, settings=settings if known is None else known))


def options_of(script: Script, words: Sequence[str]) -> Options:
    """What a command line says. As in now-dl, a launcher that started a multiple of the processes means replicas. A run
    that goes on has its own settings, but for what is said."""
    options = read_options(Options, words, defaults=DEFAULTS, adapt=script.adapt)
    if options.settings.run.resume is not None:
        return options
    settings = options.settings.but(model=script.model)
    place = detect()
    if place is not None and settings.plan.replicas is None:
        needed = settings.plan.shape.world_size
        if place.size > needed and place.size % needed == 0:
            settings = settings.but(replicas=place.size // needed)
            if place.rank == 0:
                print(f"{place.size} processes = {place.size // needed} replicas x {needed}: data parallelism")
    return replace(options, settings=settings)


# -- help ------------------------------------------------------------------------------------------------------------


def help_page(script: Script, name: str) -> str:
    """The script's flags by group, a line each, with the values they have where they are left out."""
    known = settings_of(Options)
    kinds = {flag: one.kind for table in (FOREIGN, known) for flag, one in table.items()}
    ways = " and ".join(
        way for way, chosen in (("tiles", script.spatial), ("two mirrored pipes (GEMS)", script.gems)) if chosen
    )
    lines = [
        f"usage: {name} [--flag VALUE ...]",
        "",
        f"{script.model} in stages{' with ' * bool(ways)}{ways}, by now-dl's flags. Bare, it starts the processes that",
        "it needs; under torchrun, mpirun or srun it joins those, and takes a multiple of them for replicas.",
    ]
    told = {"model"}
    for group, texts in PAGE.items():
        shown = [flag for flag in texts if flag not in script.refused]
        lines += ["", f"{group}:"] if shown else []
        for flag in shown:
            value = "" if kinds[flag] is bool else f" {METAVARS[kinds[flag]]}"
            default = LEFT_OUT.get(flag, DEFAULTS.get(flag, known[flag].default if flag in known else None))
            suffix = "" if default is None or default is False else f" (default: {default})"
            lines.append(f"  {spelled(flag) + value:28}{texts[flag]}{suffix}")
        told |= {*shown, *(FOREIGN[flag].native for flag in shown if flag in FOREIGN)}
    rest = [spelled(flag) for flag in known if flag not in told | script.refused.keys()]
    more = textwrap.wrap(" ".join(rest), 108, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join([*lines, "", "also, as halocline train --help all tells:", *more])


# -- lines -----------------------------------------------------------------------------------------------------------


class NowdlLines(Silent):
    """now-dl's lines, printed by rank 0; with --verbose its line of each step, too."""

    def __init__(self, rank: int, settings: Settings) -> None:
        super().__init__()
        self.rank, self.settings = rank, settings
        self.speeds: list[float] = []
        self.steps: list[Standing] = []
        """Of the epoch."""
        self._since = self._waited = 0.0

    def wait(self, instruction: Instruction, mark: Mark) -> None:
        self._since = time.monotonic()

    def ready(self, instruction: Instruction, mark: Mark) -> None:
        if instruction.kind == STEP:
            self._waited = time.monotonic() - self._since

    def show(self, reading: Standing) -> None:
        if not self.speeds:
            self.say(f"Effective batch size: {reading.samples}{self._passes()}")
        speed, plan = reading.samples / reading.seconds, self.settings.plan
        self.speeds.append(speed)
        self.steps.append(reading)
        times = ""
        if plan.schedule == "gems" and plan.tiles:  # as now-dl's scripts of both print it
            times = f" Time:{reading.seconds} Time Allreduce:{self._waited}"
        self.say(f"Epoch: {reading.epoch} images per sec:{speed}{times}")
        if self.settings.run.verbose:
            number, loss = len(self.steps) - 1, self._mean_loss()
            self.say(f"Step :{number}, LOSS: {reading.loss}, Global loss: {loss} Acc: {_accuracy(reading)}")
            self.say(reading.line(timed=True))
        if reading.epoch_ends:
            self._end_epoch()

    def _passes(self) -> str:
        """How GEMS's batch comes about."""
        plan = self.settings.plan
        if plan.passes is None:
            return ""
        name = "MAST: one pass in each of the two pipes" if plan.passes == 2 else "MASTER"
        return f" = {plan.passes} passes x {plan.batch_size} x {plan.replicas or 1} replicas (GEMS-{name})"

    def _mean_loss(self) -> float:
        return statistics.fmean(step.loss for step in self.steps)

    def _end_epoch(self) -> None:
        accuracy = statistics.fmean(map(_accuracy, self.steps))
        self.say(f"Epoch {self.steps[-1].epoch} Global loss: {self._mean_loss()} Acc {accuracy}")
        self.steps = []

    def say(self, text: str) -> None:
        if not self.rank:
            print(text, flush=True)

    def close(self) -> None:
        if self.steps:  # of an epoch that was not finished
            self._end_epoch()
        if self.speeds:
            self.say(f"Mean {statistics.fmean(self.speeds)} Median {statistics.median(self.speeds)}")


def _accuracy(reading: Standing) -> float:
    return reading.train_scores.get("accuracy", 0.0)
