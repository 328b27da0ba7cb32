"""What flags of all dialects say, in Halocline's own words: now-dl's, Merak's, Hugging Face's and ours, also mixed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from halocline.plan.flags import huggingface, merak, nowdl
from halocline.plan.flags.fields import Setting, changed, converted, settings_of
from halocline.plan.flags.reader import Said, name_of, read
from halocline.plan.plan import Plan
from halocline.plan.settings import PlanSettings

DIALECTS = {"now-dl": nowdl.FLAGS, "Merak": merak.FLAGS, "HuggingFace": huggingface.FLAGS}
FOREIGN = {flag.name: flag for table in DIALECTS.values() for flag in table}
POSITIONAL = ("model", "microbatch_size", "microbatches")
"""The words in front of a Merak command line."""
PASSING = {"model": str, "num_layers": int, "num_filters": int, "num_classes": int, "verbose": bool}
"""Flags that now-dl shares with Halocline and that say nothing of a plan."""
SHORT = {"-v": "verbose"}


def native(said: Mapping[str, Any]) -> dict[str, Any]:
    """Flag -> value in Halocline's own words. Two flags that say one thing must agree."""
    foreign = {name: value for name, value in said.items() if name in FOREIGN}
    words = {name: value for name, value in said.items() if name not in FOREIGN}
    found = Said(foreign, words, table=FOREIGN)
    merak.translate(found)
    huggingface.translate(found)
    nowdl.translate(found)
    return found.words


def plan_from_flags(
    flags: str | Sequence[str] | None = None,
    *,
    layers: int | None = None,
    costs: Sequence[float] | None = None,
    parameters: Sequence[float] | None = None,
    kinds: Sequence[str] | None = None,
    **fields: Any,
) -> Plan:
    """The plan that the words of a command line describe, or flags by keyword (`stages=2`, `split_size=2`), of any
    dialect. What they say of other things is passed over. `costs`, `parameters`, `kinds` have one entry per layer."""
    own = {one.flag: one.kind for one in settings_of(PlanSettings).values()}
    every = {**own, **{name: flag.kind for name, flag in FOREIGN.items()}, **PASSING}
    said = read(every, shlex.split(flags) if isinstance(flags, str) else flags or (), POSITIONAL, SHORT)
    for key, value in fields.items():
        name = name_of(key, every)
        said[name] = converted(Setting(name, (), every[name], None), value) if name in FOREIGN else value
    ours = {name: value for name, value in native(said).items() if name in own}
    settings = changed(PlanSettings(), ours)
    default = 4 if "model" in said else 2
    return settings.plan(layers=layers, stages=default, costs=costs, parameters=parameters, kinds=kinds)
