"""Halocline trains images and models too large for one GPU, exactly. This file is the public surface, loaded lazily.

Nothing is imported until it is used: plans, schedules, simulation and settings never load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocline import data, energy, tiling
    from halocline.data.dataset import Spec
    from halocline.models.model import Model
    from halocline.plan import Layout, Plan, Stage
    from halocline.runtime import Engine, join, run_local
    from halocline.schedule import Schedule, check, generate
    from halocline.schedule.events import Observer
    from halocline.simulation import Costs, Simulation, simulate
    from halocline.train import Settings, Trainer
    from halocline.train.trial import verify

__version__ = "0.1.0"

_HOMES = {
    "Costs": "simulation",
    "Engine": "runtime",
    "Layout": "plan",
    "Model": "models.model",
    "Observer": "schedule.events",
    "Plan": "plan",
    "Schedule": "schedule",
    "Settings": "train",
    "Simulation": "simulation",
    "Spec": "data.dataset",
    "Stage": "plan",
    "Trainer": "train",
    "check": "schedule",
    "generate": "schedule",
    "join": "runtime",
    "run_local": "runtime",
    "simulate": "simulation",
    "verify": "train.trial",
}

__all__ = [
    "Costs",
    "Engine",
    "Layout",
    "Model",
    "Observer",
    "Plan",
    "Schedule",
    "Settings",
    "Simulation",
    "Spec",
    "Stage",
    "Trainer",
    "check",
    "data",
    "energy",
    "generate",
    "join",
    "run_local",
    "simulate",
    "tiling",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"halocline.{_HOMES[name]}"), name)
    elif name in ("data", "energy", "tiling"):
        value = import_module(f"halocline.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next access finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
