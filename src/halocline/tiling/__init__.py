"""Run an unmodified model on an image cut into tiles over ranks, exactly. This file is the room's public surface.

Loaded lazily, so that `halocline.tiling.boxes` can be imported without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocline.tiling.cutting import redistribute as redistribute
    from halocline.tiling.cutting import tile as tile
    from halocline.tiling.exchanger import Exchanger as Exchanger
    from halocline.tiling.exchanger import NoCommunication as NoCommunication
    from halocline.tiling.exchanger import ThreadExchanger as ThreadExchanger
    from halocline.tiling.exchanger import Traffic as Traffic
    from halocline.tiling.exchanger import traffic as traffic
    from halocline.tiling.fusion import fuse as fuse
    from halocline.tiling.fusion import fused as fused
    from halocline.tiling.fusion import run_fused as run_fused
    from halocline.tiling.overlapping import Policy as Policy
    from halocline.tiling.overlapping import overlap as overlap
    from halocline.tiling.own_rule import rule as rule
    from halocline.tiling.plain import for_tiles as for_tiles
    from halocline.tiling.rules.differentiate import backward as backward
    from halocline.tiling.spec import TileSpec as TileSpec
    from halocline.tiling.tensor import TileTensor as TileTensor
    from halocline.tiling.tensor import UntiledOperation as UntiledOperation

_NAMES = {
    "cutting": "redistribute tile",
    "exchanger": "Exchanger NoCommunication ThreadExchanger Traffic traffic",
    "fusion": "fuse fused run_fused",
    "overlapping": "Policy overlap",
    "own_rule": "rule",
    "plain": "for_tiles",
    "rules.differentiate": "backward",
    "spec": "TileSpec",
    "tensor": "TileTensor UntiledOperation",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next access finds it without coming here
    return value


def __dir__() -> list[str]:
    return __all__
