"""Doing it: process groups, boundaries, stages, the executor, gradient reduction and the engine in front of them.

Nothing is imported until it is used: a measured timeline is read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocline.runtime.engine import Engine, StepResult
    from halocline.runtime.processes.launch import RankFailed, join, run_local
    from halocline.runtime.processes.lost import PeerLost
    from halocline.runtime.processes.world import World

__all__ = ["Engine", "PeerLost", "RankFailed", "StepResult", "World", "join", "run_local"]

_HOMES = {
    "Engine": "engine",
    "PeerLost": "processes.lost",
    "RankFailed": "processes.launch",
    "StepResult": "engine",
    "World": "processes.world",
    "join": "processes.launch",
    "run_local": "processes.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
