"""Halocline trains images and models too large for one GPU, exactly. This file is the public surface, loaded lazily.

Nothing is imported until it is used: plans, schedules and simulation never load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocline import tiling
    from halocline.plan import Layout, Plan, Stage
    from halocline.runtime import Engine
    from halocline.schedule import Schedule, check, generate
    from halocline.simulation import Costs, Simulation

__version__ = "0.1.0"

_HOMES = {
    "Costs": "halocline.simulation",
    "Engine": "halocline.runtime",
    "Layout": "halocline.plan",
    "Plan": "halocline.plan",
    "Schedule": "halocline.schedule",
    "Stage": "halocline.plan",
    "check": "halocline.schedule",
    "generate": "halocline.schedule",
    "Simulation": "halocline.simulation",
}

__all__ = ["Costs", "Engine", "Layout", "Plan", "Schedule", "Simulation", "Stage", "check", "generate", "tiling"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name == "tiling":
        value = import_module("halocline.tiling")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next access finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
