"""Layers by their address, `package.module:callable`: how processes that share nothing come to the same model."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from torch import nn

from halocline.runtime.layers import Layer


def layers_at(address: str) -> nn.Sequential | Sequence[Layer]:
    """The layers that the callable at an address returns. The current directory is importable, so `my_model:make`
    finds ./my_model.py."""
    found = _found(address)
    layers = found if isinstance(found, nn.Module) or not callable(found) else found()
    listed = isinstance(layers, (list, tuple)) and layers and all(callable(layer) for layer in layers)
    if not listed and not isinstance(layers, nn.Sequential):
        raise ValueError(
            f"{address} gave a {type(layers).__name__}: it must return an nn.Sequential, or a list of layers or of "
            f"functions that make them, each taking what the one before returns"
        )
    return layers


def _found(address: str) -> Any:
    module, _, attribute = address.partition(":")
    if not module or not attribute:
        raise ValueError(f"{address!r} is no address: write package.module:callable")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if not f"{module}.".startswith(f"{missing}."):
            raise ValueError(f"{address}: {module} needs {missing}, which is not there: install it") from error
        raise ValueError(
            f"{address}: there is no module {missing}: install its package, or start in the directory that holds it"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{address}: {module} has no {part}: give the name of a function that returns layers")
        found = getattr(found, part)
    return found
