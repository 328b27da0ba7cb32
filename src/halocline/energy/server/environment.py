"""The environment of Perseus's and Zeus's server, as the options of ours that mean the same. It is handed the variables
and reads none by itself.

    ZEUS_PFO_SCHEDULER=PointSolution3D                          --scheduler point-solution
    ZEUS_PFO_SCHEDULER_ARGS='{"solution_path": "freqs.py"}'     --plans freqs.py
    PERSEUS_SCHEDULER_ARGS='{"minimum_power_state": 850}'       --lowest-frequency 850
    ZEUS_PFO_MAX_JOB_IDLE_TIME=86400                            --keep-days 1

What has no such option is named, with what takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halocline.energy.server.settings import scheduler_named

PREFIXES = ("ZEUS_PFO_", "PERSEUS_")
"""Zeus's and Perseus's; where both say something, Zeus's holds."""
_DAY = 86400.0
_INSTEAD = {
    "DUMP_DATA": "--data keeps everything",
    "DUMP_DIR": "--data keeps everything",
    "LOG_LEVEL": "errors are logged",
    "warmup_step_ratio": "the job leaves out --profile-warmup steps",
    "warmup_iters": "the job leaves out --profile-warmup steps",
    "num_iters": "the job runs --steps",
    "reverse": "one plan is played",
}
"""What has no option -> what takes its place. PERSEUS_ names that are neither here nor below are not the server's."""


@dataclass
class Environment:
    """What the variables say."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of `halocline energy serve` and their values."""
    unused: list[str] = field(default_factory=list)
    """What has no option, and what takes its place."""

    def line(self) -> str:
        """Both in a line for people; empty where nothing was said."""
        used = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.options.items())
        unused = f"not used: {', '.join(self.unused)}" if self.unused else ""
        return "; ".join(filter(None, [used and f"from the environment: {used}", unused]))


def options_of(variables: Mapping[str, str]) -> Environment:
    """The options that the variables mean; ValueError where one of them is wrong."""
    found = Environment()
    said: dict[str, tuple[str, str]] = {}
    for prefix in reversed(PREFIXES):
        for variable, value in sorted(variables.items()):
            name = variable.upper().removeprefix(prefix)
            known = prefix == PREFIXES[0] or name in _READERS or name in _INSTEAD
            if name != variable.upper() and value and known:
                said[name] = variable, value
    for name, (variable, value) in said.items():
        if name in _READERS:
            _READERS[name](found, variable, value)
        else:
            _leave(found, variable, name)
    if "plans" in found.options:
        found.options.setdefault("scheduler", "point-solution")  # Zeus's own, where only the arguments are given
    return found


def _leave(found: Environment, shown: str, name: str) -> None:
    found.unused.append(f"{shown} ({_INSTEAD[name]})" if name in _INSTEAD else shown)


def _scheduler(found: Environment, variable: str, value: str) -> None:
    try:
        found.options["scheduler"] = scheduler_named(value)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from error


def _arguments(found: Environment, variable: str, value: str) -> None:
    try:
        arguments = json.loads(value)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(f'{variable} = {value[:60]!r} is no JSON object: write {{"solution_path": "FILE.py"}}')
    for name, argument in arguments.items():
        if name == "solution_path":
            if not isinstance(argument, str) or not argument:
                raise ValueError(f"{variable}: {name} = {str(argument)[:60]!r} is no path: give a plan's")
            found.options["plans"] = argument
        elif name == "minimum_power_state":
            if isinstance(argument, bool) or not isinstance(argument, int) or argument < 0:
                raise ValueError(f"{variable}: {name} = {str(argument)[:60]!r} is no frequency: give whole MHz")
            found.options["lowest_frequency"] = argument
        else:
            _leave(found, f"{name[:60]} of {variable}", name)


def _idle_time(found: Environment, variable: str, value: str) -> None:
    if not (value.isascii() and value.isdecimal() and 0 < int(value[:12])):
        raise ValueError(
            f"{variable} = {value[:60]!r} is no number of seconds above 0: give whole seconds, e.g. 604800"
        )
    found.options["keep_days"] = int(value[:12]) / _DAY


def _mode(found: Environment, variable: str, value: str) -> None:
    if value != "frequency":
        raise ValueError(f"{variable} = {value[:60]!r}: clocks are set here, power limits are not: use frequency")


_READERS = {
    "SCHEDULER": _scheduler,
    "SCHEDULER_ARGS": _arguments,
    "MAX_JOB_IDLE_TIME": _idle_time,
    "MODE": _mode,
}
"""Variable without its prefix -> what reads it."""
