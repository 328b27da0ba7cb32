"""`halocline energy serve`: the server that profiles running jobs and hands every rank its frequencies."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halocline.plan.plan import SCHEDULES
from halocline.plan.require import require_choice
from halocline.plan.settings import PlanSettings

if TYPE_CHECKING:
    from halocline.energy.frontier.frequency_plan import FrequencyPlan
    from halocline.energy.server.settings import ServerSettings

TOKEN = "HALOCLINE_ENERGY_TOKEN"


@dataclass(frozen=True)
class Options:
    """Serves frequency plans to training jobs: over the wire of the Zeus pipeline-frequency client, with a page at /.

    Everything acknowledged is kept in --data, and a server that is started again goes on with every job. What is left
    out here may stand in the environment as Zeus's and Perseus's servers have it (ZEUS_PFO_SCHEDULER and the like)."""

    host: str = "127.0.0.1"
    """The address to listen on. Beyond this machine only with a token."""
    port: int = 7787
    """0 takes a free one; the address is printed."""
    scheduler: str | None = None
    """instruction-profiler (sweep, solve, deploy while the job trains; what is played if left out), all-max, or
    point-solution (plays --plans). The names of Perseus and Zeus (InstructionProfiler, PointSolution3D) do too."""
    plans: str | None = None
    """point-solution: a frequency plan of `halocline energy frontier` or of lowtime (.py), or a directory of them."""
    plan: str | None = None
    """The plan.toml of jobs that do not send their own, as the Zeus client."""
    schedule: str = "1f1b"
    """The schedule of jobs that send no plan, without --plan (interleaved: two stages per rank)."""
    microbatches: int | None = None
    """The microbatches of jobs that send no plan, without --plan (left out: as in --plans, else 8)."""
    blocking_power: float | None = None
    """Watts of a waiting rank, for jobs that do not say (left out: estimated from their reports)."""
    lowest_frequency: int | None = None
    """MHz below which the sweep does not go (left out: all of them)."""
    stride: int = 1
    """The sweep takes every so-many-th frequency."""
    patience: int = 2
    """A stage's sweep ends after so many frequencies in a row that save nothing."""
    data: str = "halocline-energy.sqlite"
    """The file in which everything is kept."""
    token_file: str | None = None
    """A file that holds the token clients must send (left out: the environment's HALOCLINE_ENERGY_TOKEN, if set)."""
    rank_timeout: float = 120.0
    """Seconds that a rank waits for the others before it is told who is missing."""
    solve_wait: float = 5.0
    """Seconds that ranks wait for a frontier before they go on at the highest frequency meanwhile."""
    body_limit: int = 8 << 20
    """Bytes of the largest request."""
    rate: float = 2000.0
    """Requests per second from one address."""
    rank_rate: float = 50.0
    """Requests per second from one rank of a job."""
    keep_days: float | None = None
    """Jobs that nobody has touched for so long are forgotten (left out: 30)."""


def run(options: Options) -> int:
    require_choice("schedule", options.schedule, SCHEDULES)
    from halocline.energy.server.environment import options_of
    from halocline.energy.server.settings import require_safe

    environment = options_of(os.environ)
    if environment.line():
        print(f"halocline energy serve: {environment.line()}", file=sys.stderr)
    options = replace(
        options, **{name: value for name, value in environment.options.items() if getattr(options, name) is None}
    )
    token = _token(options)
    require_safe(options.host, token)
    if not 0 <= options.port < 65536:
        raise ValueError(f"--port {options.port} is not a port: use 0 to 65535")
    if options.plan is not None and options.microbatches is not None:
        raise ValueError(
            f"--microbatches {options.microbatches} beside --plan {options.plan}, which says it: leave out one of them"
        )
    settings = settings_of(options, token)
    from halocline.energy.server.app import serve

    def ready(address: str) -> None:
        print(f"energy server on {address} ({settings.scheduler}, kept in {options.data})", flush=True)

    serve(settings, Path(options.data), options.host, options.port, ready)
    return 0


def settings_of(options: Options, token: str | None) -> ServerSettings:
    """The server's settings, with the plans they name."""
    from halocline.energy.server.settings import ServerSettings, scheduler_named

    plans = _load_plans(options.plans) if options.plans is not None else ()
    alike = {field.name for field in fields(ServerSettings)} & {field.name for field in fields(options)}
    said = {name: value for name in alike if (value := getattr(options, name)) is not None}
    if options.scheduler is not None:
        said["scheduler"] = scheduler_named(options.scheduler)
    given = {
        **said,
        "plans": plans,
        "plan": PlanSettings(file=options.plan).plan() if options.plan is not None else None,
        "microbatches": _microbatches(options, plans),
    }
    return ServerSettings(**given, token=token)


def _token(options: Options) -> str | None:
    if options.token_file is None:
        return os.environ.get(TOKEN) or None
    token = Path(options.token_file).read_text(encoding="utf-8", errors="replace").strip()
    if not token:
        raise ValueError(f"{options.token_file} is empty: write a token of 16 characters or more into it")
    return token


def _load_plans(path: str) -> tuple[FrequencyPlan, ...]:
    from halocline.energy.frontier.frequency_plan import FrequencyPlan

    place = Path(path)
    names = sorted([*place.glob("*.json"), *place.glob("*.py")]) if place.is_dir() else [place]
    if not names:
        raise ValueError(f"{path} holds 0 frequency plans: give a directory of .json or .py files, or one of them")
    return tuple(FrequencyPlan.load(name) for name in names)


def _microbatches(options: Options, plans: tuple[FrequencyPlan, ...]) -> int:
    """A given plan tells how many microbatches its jobs have: as many as its first row has forwards (half of it, where
    none are named), and half of them where that rank has two stages of a pipe."""
    if options.microbatches is not None:
        return options.microbatches
    if plans and plans[0].frequencies:
        kinds = [kind for kind, _ in plans[0].frequencies[0]]
        forwards = kinds.count("forward") or kinds.count("") // 2
        return max(1, forwards // 2 if options.schedule == "interleaved" else forwards)
    return 8
