"""Merak's command line, as run.sh hands it over: MODEL MICROBATCH_SIZE NUM_MICROBATCHES and flags, with defaults like
Merak's, over the one trainer. On several nodes each starts its share of the processes; under a launcher it joins those.
"""

from __future__ import annotations

import dataclasses
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halocline.cli.dry_run import arithmetic, dry_run
from halocline.models.zoo import find
from halocline.plan.plan import Plan
from halocline.plan.words import read_words
from halocline.train.config import Config

POSITIONAL = ("model", "microbatch_size", "microbatches")
STAGES = 4
"""Where nothing is said of them."""
SYNTHETIC = 3
FOREVER = 10**9
PORT, PERSEUS_PORT = 29500, 7787

OWN_WORDS: dict[str, tuple[str, ...]] = {
    "layers": ("blocks", "num_layers"),
    "hidden": ("base_width", "num_filters"),
    "vocab": ("num_classes",),
}
"""What models of images call the sizes of a transformer; --seq is the side of their images, and they have no heads."""


@dataclass(frozen=True)
class Options(Config):
    """Trains MODEL on pp x tp x dp processes, NUM_MICROBATCHES microbatches of MICROBATCH_SIZE samples a step; takes
    all flags of halocline train, with _ or -. Steps left out: --num_warmup_steps + --num_prof_steps on synthetic data,
    else an epoch; without end where an energy server or a sweep has the lead."""

    optimizer: str = "adamw"
    """sgd or adamw."""
    lr: float = 1e-4
    """Learning rate at its highest."""
    weight_decay: float = 0.01
    """Weight decay; biases and the weights of norms are left out."""
    clip: float | None = 1.0
    """Scale gradients so that their norm over the whole model is at most this."""
    evaluation_fraction: float | None = None  # type: ignore[assignment]
    """The share of the data that is kept for evaluation (left out: 0.1; of synthetic data 0)."""

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

    def __post_init__(self) -> None:
        if self.evaluation_fraction is None:
            object.__setattr__(self, "evaluation_fraction", 0.0 if self.app == SYNTHETIC else 0.1)
        super().__post_init__()


def main(words: Sequence[str] | None = None) -> int:
    """Run; the exit code. Mistakes are answered in one line."""
    words = sys.argv[1:] if words is None else words
    if not words or "-h" in words or "--help" in words:
        from halocline.cli.help import show_help

        show_help(Options, "run.sh MODEL MICROBATCH_SIZE NUM_MICROBATCHES")
        return 0
    try:
        return run(read_words(Options, words, positional=POSITIONAL, short={"-v": "verbose"}))
    except (ValueError, OSError) as error:
        print(f"run.sh: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def run(options: Options) -> int:
    missing = [name.upper() for name in POSITIONAL if getattr(options, name) is None]
    if missing and options.resume is None:
        raise ValueError(
            f"no {missing[0]}: write bash run.sh MODEL MICROBATCH_SIZE NUM_MICROBATCHES, e.g. bash run.sh gpt3-xl 8 128"
        )
    if options.model is not None:
        find(options.model)  # a wrong name is answered before torch is loaded
    config = settings(options)
    check_world(options, config)
    if config.dry_run:
        return dry_run(config)

    # torch takes seconds to load: most mistakes have been answered by now.
    from halocline.runtime.processes.nodes import Nodes
    from halocline.train.start import start

    nodes = None
    if options.nnodes is not None:
        port = options.master_port or (PORT if options.nnodes > 1 else 0)
        nodes = Nodes(options.nnodes, options.node_rank, options.master_addr, port)
    return start(config, nodes=nodes)


def settings(options: Options) -> Config:
    """The settings of a training run that a Merak command line means."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Config)}
    if options.model is not None:
        given |= _sizes(options)
    if not any(given[name] for name in ("plan", "pp", "split_size", "balance", "resume")):
        listed = (options.partition_method or "").startswith("custom:")
        given["pp"] = None if listed else STAGES  # a list counts its stages
    given["perseus_url"] = options.perseus_url or _server(options)
    synthetic = options.app == SYNTHETIC
    if options.steps is None and options.epochs is None and options.resume is None:
        if given["perseus_url"] or options.sweep or options.train_schedule == "instruction_profiler":
            given["steps"] = FOREVER
        elif synthetic:
            given["steps"] = options.num_warmup_steps + options.num_prof_steps
    if synthetic and options.save_every is None:
        given["save_every"] = 0  # what it learns of synthetic data is not worth keeping
    return Config(**given)


def check_world(options: Options, config: Config) -> None:
    """Whether the nodes' processes are as many as the plan needs: NNODES x NUM_GPUS = pp x tp x dp."""
    if options.resume is not None:
        return  # the plan is the saved run's; the trainer will tell
    plan = Plan.load(config.plan) if config.plan else Plan.from_flags(_without_layers(config))
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


def _without_layers(config: Config) -> Any:
    """The flags that say how many processes a plan has: which layers go where is the model's matter."""
    listed = (config.partition_method or "").startswith("custom:")
    return dataclasses.replace(config.flags, partition_method=config.partition_method if listed else None)


def _sizes(options: Options) -> dict[str, Any]:
    """The sizes that shrink a model, in the model's own words."""
    asked = {name: getattr(options, name) for name in ("layers", "hidden", "heads", "vocab", "seq")}
    asked = {name: value for name, value in asked.items() if value is not None}
    if not asked:
        return {}
    assert options.model is not None

    from halocline.models.model import options_of

    known = options_of(options.model)
    if "seq" in known or "heads" in known:
        return {}  # a transformer
    changed: dict[str, Any] = dict.fromkeys(asked)
    own = [options.model_options] if options.model_options else []
    for name, value in asked.items():
        word = next((word for word in OWN_WORDS.get(name, ()) if word in known), None)
        if word == "base_width":
            value = _base_width(options.model, value, known.get("width", 1))
        if word is not None:
            own.append(f"{word}={value}")
        elif name == "seq":
            changed["image_size"] = options.image_size or str(value)
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
