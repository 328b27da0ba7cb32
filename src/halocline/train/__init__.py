"""The loop: from a model, data and a plan to a trained checkpoint, with its metrics.

Puts the other rooms together; holds nothing that one of them could hold. Loaded lazily: settings need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocline.train.settings import Settings
    from halocline.train.trainer import Outcome, Trainer

_HOMES = {
    "Outcome": "halocline.train.trainer",
    "Settings": "halocline.train.settings",
    "Trainer": "halocline.train.trainer",
}

__all__ = ["Outcome", "Settings", "Trainer"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
