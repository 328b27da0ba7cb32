"""Merak's command line, as run.sh hands it over: MODEL MICROBATCH_SIZE NUM_MICROBATCHES and flags, with defaults like
Merak's, over the one trainer. On several nodes each starts its share of the processes; under a launcher it joins those.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from halocline.cli import one_line
from halocline.cli.dry_run import arithmetic, dry_run
from halocline.cli.options import help_parser, read_options
from halocline.models.zoo import find
from halocline.plan.flags.dialects import POSITIONAL
from halocline.plan.partition import partition
from halocline.train.settings import LESIONS, SYNTHETIC, Settings

DEFAULTS = {"optimizer": "adamw", "lr": 1e-4, "weight_decay": 0.01, "clip": 1.0}
STAGES = 4
"""Where nothing is said of them."""
FOREVER = 10**9
PORT, PERSEUS_PORT = 29500, 7787

OWN_WORDS: dict[str, tuple[str, ...]] = {
    "layers": ("blocks", "num_layers"),
    "hidden": ("base_width", "num_filters"),
    "vocab": ("num_classes",),
}
"""What models of images call the sizes of a transformer; --seq is the side of their images, and they have no heads."""


@dataclass(frozen=True)
class Options:
    """Trains MODEL on pp x tp x dp processes, NUM_MICROBATCHES microbatches of MICROBATCH_SIZE samples a step; takes
    all flags of halocline train, with _ or -. Left out, as in Merak: 4 stages, activation checkpointing,
    uniform_transformer where the model has blocks. Steps left out: --num_warmup_steps + --num_prof_steps on synthetic
    data, else an epoch; without end where an energy server or a sweep has the lead."""

    settings: Settings = field(default_factory=Settings)
    dry_run: bool = False
    """Start nothing: say what the run would be, with its plan proved and its time and memory predicted."""

    # -- what run.sh takes from the environment

    num_gpus: int | None = None
    """Processes of each node, NUM_GPUS (left out: as many as the degrees ask for)."""
    nnodes: int | None = None
    """Machines, NNODES. Left out, the processes of a launcher are joined where there is one."""
    node_rank: int = 0
    """Which of them this is, NODE_RANK."""
    master_addr: str = "localhost"
    """Where node 0 is reached, MASTER_ADDR."""
    master_port: int | None = None
    """And its port, MASTER_PORT (left out: 29500; on one node any free one)."""
    perseus_port: int | None = None
    """Port of an energy server on node 0, PERSEUS_PORT. Left out: 7787, if one node is all and a server answers."""


def main(words: Sequence[str] | None = None) -> int:
    """Run; the exit code. Mistakes are answered in one line."""
    words = sys.argv[1:] if words is None else words
    if not words or "-h" in words or "--help" in words:
        topic = words[1] if len(words) > 1 else None
        prog = "run.sh MODEL MICROBATCH_SIZE NUM_MICROBATCHES"
        help_parser(Options, prog, topic, dialect="Merak", defaults=DEFAULTS).print_help()
        return 0
    try:
        return run(read_options(Options, _profiling(words), POSITIONAL, defaults=DEFAULTS))
    except (ValueError, OSError) as error:
        print(f"run.sh: error: {one_line(error)}", file=sys.stderr)
        return 2


def run(options: Options) -> int:
    said = options.settings
    words = (said.model.name, said.plan.microbatch_size, said.plan.microbatches)
    missing = [name.upper() for name, word in zip(POSITIONAL, words) if word is None]
    if missing and said.run.resume is None:
        raise ValueError(
            f"no {missing[0]}: write bash run.sh MODEL MICROBATCH_SIZE NUM_MICROBATCHES, e.g. bash run.sh gpt3-xl 8 128"
        )
    if said.model.name is not None:
        find(said.model.name)  # a wrong name is answered before torch is loaded
    settings = settings_of(options)
    check_world(options, settings)
    # torch takes seconds to load: most mistakes have been answered by now.
    settings, chosen = with_defaults(settings)
    if options.dry_run:
        if chosen:
            print(chosen)
        return dry_run(settings)

    from halocline.runtime.processes.nodes import Nodes
    from halocline.train.progress import progress
    from halocline.train.start import start

    nodes = None
    if options.nnodes is not None:
        port = options.master_port or (PORT if options.nnodes > 1 else 0)
        nodes = Nodes(options.nnodes, options.node_rank, options.master_addr, port)
    return start(settings, partial(progress, verbose=settings.run.verbose, opening=chosen), nodes)


def settings_of(options: Options) -> Settings:
    """The settings of a training run that a Merak command line means."""
    found = options.settings
    if found.model.name is not None:
        found = found.but(**_sizes(found, found.model.name))
    plan, resume = found.plan, found.run.resume
    if _open(found) and plan.stages is None and plan.listed is None:
        found = found.but(stages=STAGES)  # a list counts its stages
    found = found.but(energy_server=found.energy.energy_server or _server(options))
    synthetic = found.data.source in (SYNTHETIC, LESIONS)
    if found.run.steps is None and found.run.epochs is None and resume is None:
        if found.energy.energy_server or found.energy.sweep:
            found = found.but(steps=FOREVER)
        elif synthetic:
            found = found.but(steps=found.energy.profile_warmup + found.energy.profile_steps)
    if synthetic and "save_every" not in found.said:
        found = found.but(save_every=0)  # what it learns of synthetic data is not worth keeping
    if synthetic and "evaluation_fraction" not in found.said:
        found = found.but(evaluation_fraction=0.0)
    return found


def with_defaults(settings: Settings) -> tuple[Settings, str]:
    """The settings with Merak's defaults that need the model, where nothing is said; and a line that tells them."""
    plan, chosen = settings.plan, []
    if not _open(settings):
        return settings, ""
    if plan.recompute is None and plan.schedule != "early-recompute-1f1b":  # which says itself what recomputes
        # Under 1f1b the last stage's backward follows its forward: recomputing there takes time and saves nothing.
        vain = plan.schedule in (None, "1f1b") and len(plan.shape.stages) > 1
        settings = settings.but(recompute="but-last" if vain else "all")
        where = "but in the last stage, whose backward comes at once; " if vain else ""
        chosen.append(f"activation checkpointing ({where}--activation_checkpointing false turns it off)")
    if plan.balance is None:
        method, why = _partition(settings)
        settings = settings.but(balance=method)
        chosen.append(f"partition_method {method}{why}")
    return settings, f"by default: {', '.join(chosen)}" if chosen else ""


def _partition(settings: Settings) -> tuple[str, str]:
    """Merak's method, if it has a way for the model; else ours, and why."""
    from halocline.train.planning import model_of, named

    kinds, stages = model_of(named(settings)).kinds, len(settings.plan.shape.stages)
    if not kinds:
        return "uniform_floor", ", as the model has no transformer blocks"
    try:
        partition("uniform_transformer", len(kinds), stages, kinds=kinds)
    except ValueError as error:
        return "uniform_floor", f", as uniform_transformer cannot be: {error}"
    return "uniform_transformer", ""


def _open(settings: Settings) -> bool:
    """Whether the plan is not said by a file or by a run that goes on."""
    return settings.plan.file is None and not (settings.run.resume is not None and settings.model.name is None)


def _profiling(words: Sequence[str]) -> list[str]:
    """Merak's --profile is a switch, which may stand without its value; --profile FILE is ours."""
    following = [*words[1:], "--"]
    return [
        f"{word}=true" if word == "--profile" and after.startswith("--") else word
        for word, after in zip(words, following)
    ]


def check_world(options: Options, settings: Settings) -> None:
    """Whether the nodes' processes are as many as the plan needs: NNODES x NUM_GPUS = pp x tp x dp."""
    if settings.run.resume is not None:
        return  # the plan is the saved run's; the trainer will tell
    # Which layers go where is the model's matter, but for a list.
    listed = settings.plan.balance if settings.plan.listed is not None else None
    plan = replace(settings.plan, balance=listed, layers=None).plan()
    needed, nodes = plan.world_size, options.nnodes or 1
    if options.num_gpus is not None and nodes * options.num_gpus != needed:
        fix = f"NUM_GPUS={needed // nodes}" if needed % nodes == 0 else f"NNODES=1 NUM_GPUS={needed}"
        raise ValueError(
            f"{arithmetic(plan)} = {needed} processes, but NNODES x NUM_GPUS = {nodes} x {options.num_gpus} = "
            f"{nodes * options.num_gpus}: use {fix}, or other degrees"
        )
    if needed % nodes:
        raise ValueError(
            f"{arithmetic(plan)} = {needed} processes do not divide into NNODES = {nodes}: use degrees whose product "
            f"is a multiple of {nodes}"
        )


def _sizes(said: Settings, model: str) -> dict[str, Any]:
    """The sizes that shrink a model, in the model's own words."""
    asked = {name: getattr(said.model, name) for name in ("hidden", "heads", "vocab", "seq", "num_layers")} | {
        "layers": said.plan.layers
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    if not asked:
        return {}

    from halocline.models.model import options_of

    known = options_of(model)
    changed: dict[str, Any] = dict.fromkeys(asked)
    number = asked.pop("num_layers", None)
    if "num_layers" in known:
        changed.pop("num_layers", None)  # AmoebaNet's cells
    elif number is not None and asked.setdefault("layers", number) != number:
        raise ValueError(f"num_layers = {number} and layers = {asked['layers']} both say the blocks: give one of them")
    if "seq" in known or "heads" in known:  # a transformer
        return {"layers": asked.get("layers"), "num_layers": None}
    own = [said.model.model_options] if said.model.model_options else []
    for name, value in asked.items():
        word = next((word for word in OWN_WORDS.get(name, ()) if word in known), None)
        if word == "base_width":
            value = _base_width(model, value, known.get("width", 1))
        if word is not None:
            own.append(f"{word}={value}")
        elif name == "seq":
            changed["image_size"] = said.plan.image_size or str(value)
        elif name != "heads":
            changed[name] = value  # the model will say that it has none
    return {**changed, "model_options": ",".join(own) or None}


def _base_width(model: str, hidden: int, width: int) -> int:
    """The base width of a ResNet whose blocks are `hidden` wide inside, in their first group."""
    if hidden % width:
        raise ValueError(
            f"hidden = {hidden} is not a multiple of {width}, the factor by which the blocks of {model} are wider: use "
            f"{-(-hidden // width) * width}"
        )
    return hidden // width


def _server(options: Options) -> str | None:
    """The energy server that was named by its port, or that answers at the usual one."""
    if options.perseus_port is not None:
        return f"http://{options.master_addr}:{options.perseus_port}"
    if options.nnodes != 1 or options.dry_run:
        return None  # nodes that each looked for one could differ in what they find
    try:
        with socket.create_connection(("localhost", PERSEUS_PORT), timeout=0.2):
            print(f"run.sh: the energy server on port {PERSEUS_PORT} has the lead", file=sys.stderr)
            return f"http://localhost:{PERSEUS_PORT}"
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
