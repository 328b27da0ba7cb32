"""Run an unmodified model on an image cut into tiles over ranks, exactly. This file is the room's public surface.

Loaded lazily, so that `halocline.tiling.boxes` can be imported without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocline.tiling.cutting import redistribute, tile
    from halocline.tiling.exchanger import Exchanger, NoCommunication, ThreadExchanger, Traffic, traffic
    from halocline.tiling.fusion import fuse, fused, run_fused
    from halocline.tiling.overlapping import Policy, overlap
    from halocline.tiling.own_rule import rule
    from halocline.tiling.plain import for_tiles
    from halocline.tiling.rules.differentiate import backward
    from halocline.tiling.spec import TileSpec
    from halocline.tiling.tensor import TileTensor, UntiledOperation

_HOMES = {
    "Exchanger": "exchanger",
    "NoCommunication": "exchanger",
    "Policy": "overlapping",
    "ThreadExchanger": "exchanger",
    "TileSpec": "spec",
    "TileTensor": "tensor",
    "Traffic": "exchanger",
    "UntiledOperation": "tensor",
    "backward": "rules.differentiate",
    "for_tiles": "plain",
    "fuse": "fusion",
    "fused": "fusion",
    "overlap": "overlapping",
    "redistribute": "cutting",
    "rule": "own_rule",
    "run_fused": "fusion",
    "tile": "cutting",
    "traffic": "exchanger",
}

__all__ = [
    "Exchanger",
    "NoCommunication",
    "Policy",
    "ThreadExchanger",
    "TileSpec",
    "TileTensor",
    "Traffic",
    "UntiledOperation",
    "backward",
    "for_tiles",
    "fuse",
    "fused",
    "overlap",
    "redistribute",
    "rule",
    "run_fused",
    "tile",
    "traffic",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next access finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
