"""The settings of a server, as the command line or a test gives them. Checked when they are made."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.plan.plan import Plan
from halocline.plan.require import require_choice, require_degree

SCHEDULERS = ("instruction-profiler", "all-max", "point-solution")
_CLASSES = {
    "AllMax": "all-max",
    "AllMaxFrequency": "all-max",
    "InstructionProfiler": "instruction-profiler",
    "PointSolution": "point-solution",
}
"""Perseus's and Zeus's classes. With 3D behind the name they know of data and tensor parallelism, as ours always do."""


def scheduler_named(name: str) -> str:
    """The scheduler that is called so, here or in Perseus and Zeus."""
    found = _CLASSES.get(name.removesuffix("3D"), name)
    require_choice("scheduler", found, SCHEDULERS)
    return found


@dataclass(frozen=True)
class ServerSettings:
    """How a server behaves."""

    scheduler: str = "instruction-profiler"
    """What jobs play that do not ask for another."""
    plans: tuple[FrequencyPlan, ...] = ()
    """point-solution: the plans to play, in any order."""
    plan: Plan | None = None
    """The plan of jobs that do not send one; None makes one of their degrees, `schedule` and `microbatches`."""
    schedule: str = "1f1b"
    microbatches: int = 8
    blocking_power: float | None = None
    """Watts of a rank that waits, for jobs that do not say; None estimates it from their reports."""
    lowest_frequency: int = 0
    """The sweep does not go below this many MHz."""
    stride: int = 1
    """The sweep takes every so-many-th frequency."""
    patience: int = 2
    """A stage's sweep ends after so many frequencies in a row that save nothing."""
    rank_timeout: float = 120.0
    """Seconds that a rank waits for the others before it is told who is missing."""
    solve_wait: float = 5.0
    """Seconds that ranks wait for the frontier before they go on at the highest frequency meanwhile."""
    token: str | None = None
    body_limit: int = 8 << 20
    """Bytes of the largest request."""
    rate: float = 2000.0
    """Requests per second from one address, and twice as many at once."""
    rank_rate: float = 50.0
    """Requests per second from one rank of a job, and twice as many at once."""
    keep_days: float = 30.0
    """Jobs that nobody has touched for so long are forgotten."""

    def __post_init__(self) -> None:
        require_choice("scheduler", self.scheduler, SCHEDULERS)
        require_degree("stride", self.stride)
        require_degree("patience", self.patience)
        require_degree("microbatches", self.microbatches)
        require_degree("body-limit", self.body_limit)
        if self.scheduler == "point-solution" and not self.plans:
            raise ValueError(
                "scheduler = 'point-solution' has 0 plans to play: give --plans FILE or a directory of them"
            )
        untimed = sum(not plan.timed for plan in self.plans)
        if untimed and len(self.plans) > 1:
            raise ValueError(
                f"{untimed} of {len(self.plans)} plans do not say how long they take, so nothing says which to play: "
                f"give one file"
            )
        for name in ("rank_timeout", "rate", "rank_rate", "keep_days"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name.replace('_', '-')} = {value:g} is not above 0: give a number above 0")
        for name in ("lowest_frequency", "solve_wait", "blocking_power"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name.replace('_', '-')} = {value:g} is below 0: give 0 or more")


def require_safe(host: str, token: str | None) -> None:
    """Whoever can reach a server without a token can slow every job on it: then only this machine may."""
    if token is not None:
        if len(token) < 16 or not token.isascii() or any(c.isspace() for c in token):
            raise ValueError(
                f"the token has {len(token)} characters: give 16 or more, ASCII without spaces, "
                f"e.g. of `openssl rand -hex 16`"
            )
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise ValueError(
            f"host {host} can be reached from other machines and there is no token: give --token-file FILE "
            f"(or HALOCLINE_ENERGY_TOKEN), or use --host 127.0.0.1"
        )
