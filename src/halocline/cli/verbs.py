"""The table of verbs, and how one is found and run. Help of the whole command comes from the table alone: no verb is
imported before it is asked for.

A verb is a module with a frozen dataclass `Options` (its docstrings are its help) and `run(options) -> exit code`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple


class Verb(NamedTuple):
    """A line of the table."""

    name: str
    module: str
    help: str
    positional: tuple[str, ...] = ()
    """Options that may be given as plain words, all or none of them."""


VERBS = (
    Verb(
        "plan show",
        "halocline.cli.plan_show",
        "who does what: ranks, tiles, messages and groups of a plan, from flags or a plan.toml",
        ("model", "microbatch_size", "microbatches"),
    ),
    Verb("schedule show", "halocline.cli.schedule_show", "the instructions of every rank, as text"),
    Verb("schedule check", "halocline.cli.schedule_check", "prove a schedule kept as text", ("file",)),
    Verb("simulate", "halocline.cli.simulate", "time, bubble and memory of a schedule, and a drawing of it"),
    Verb("models", "halocline.cli.models", "the models there are: layers, parameters, activation memory", ("model",)),
    Verb("verify", "halocline.cli.verify", "is a plan exact for a model? run it beside one device", ("model",)),
    Verb("train", "halocline.cli.train", "train a model under a plan; checkpoints, metrics, resume", ("model",)),
    Verb("export", "halocline.cli.export", "a run's weights as one plain safetensors file", ("source",)),
    Verb(
        "timeline", "halocline.cli.timeline", "what the ranks of a run did when, beside the prediction", ("directory",)
    ),
    Verb("energy demo", "halocline.cli.energy_demo", "profile, solve and deploy in a minute, on simulated devices"),
    Verb("energy frontier", "halocline.cli.energy_frontier", "least energy for every iteration time, and its clocks"),
    Verb(
        "energy profile",
        "halocline.cli.energy_profile",
        "time and energy of each stage at each frequency, as profile.csv",
        ("model",),
    ),
    Verb("energy serve", "halocline.cli.energy_serve", "profile running jobs, and hand their ranks frequencies"),
)


def usage(group: str = "") -> str:
    """The table as help: all verbs, or those that begin with one word."""
    verbs = [verb for verb in VERBS if not group or verb.name.split()[0] == group]
    width = max(len(verb.name) for verb in verbs)
    lines = [f"  {verb.name.ljust(width)}  {verb.help}" for verb in verbs]
    head = [
        f"usage: halocline {group or 'VERB'} ... [--debug]",
        "",
        "Trains images and models too large for one GPU: exactly, on any number of GPUs.",
        "",
        "verbs:",
    ]
    tail = [
        "",
        "halocline VERB --help tells a verb's options, halocline --version the version;",
        "halocline --install-completion [bash|zsh|tcsh] lets the shell complete them.",
    ]
    return "\n".join([*head, *lines, *tail])


def find(words: Sequence[str]) -> tuple[Verb | None, list[str]]:
    """The verb that the words begin with and the words behind it; None if they ask for a group's help."""
    for verb in VERBS:
        length = len(verb.name.split())
        if " ".join(words[:length]) == verb.name:
            return verb, list(words[length:])
    groups = {verb.name.split()[0] for verb in VERBS if " " in verb.name}
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first in groups:
        if second in ("-h", "--help"):
            return None, []
        names = [verb.name for verb in VERBS if verb.name.split()[0] == first]
        raise ValueError(f"{' '.join([first, second]).strip()!r} is not a verb: write {' or '.join(names)}")
    known = ["--help", "--version"] if first.startswith("-") else [verb.name for verb in VERBS]
    near = difflib.get_close_matches(first, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(verb.name for verb in VERBS)}"
    raise ValueError(f"{first!r} is not a verb: {hint}")


def run(verb: Verb, words: Sequence[str]) -> int:
    """Reads a verb's options from the words behind it and runs it."""
    from halocline.cli.options import help_parser, read_options

    module = import_module(verb.module)
    asked = next((place for place, word in enumerate(words) if word in ("-h", "--help")), None)
    if asked is not None:
        prog = " ".join(["halocline", verb.name, *(f"[{name.upper()}]" for name in verb.positional)])
        help_parser(module.Options, prog, *words[asked + 1 : asked + 2]).print_help()
        return 0
    code: int = module.run(read_options(module.Options, words, verb.positional))
    return code
