"""At which clock: profiles of time and energy, the frontier of both, and the server and client that put it to work.

Reads schedules as everybody does; knows nothing of tensors. Loaded lazily.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocline.energy.client import Client, RankClient
    from halocline.energy.frontier.frequency_plan import FrequencyPlan
    from halocline.energy.frontier.frontier import solve
    from halocline.energy.profile.table import ProfileTable

_HOMES = {
    "Client": "client",
    "FrequencyPlan": "frontier.frequency_plan",
    "ProfileTable": "profile.table",
    "RankClient": "client",
    "solve": "frontier.frontier",
}

__all__ = ["Client", "FrequencyPlan", "ProfileTable", "RankClient", "solve"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"halocline.energy.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
