"""Functions compiled by torch.jit.script, given tiles: the Python function that was compiled runs in their place.

TorchScript asks no rule: it would run on one tile. What was traced has numbers of its example in it, and a scripted
module has a state of its own: these are refused, here and by TileTensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.jit._state import _try_get_jit_cached_function

from halocline.tiling.tensor import SCRIPTED, find_tiles, untiled

_CALL = torch.jit.ScriptFunction.__call__


def _on_tiles_too(self: Any, *args: Any, **kwargs: Any) -> Any:
    if not find_tiles((*args, *kwargs.values())):
        return _CALL(self, *args, **kwargs)
    source = getattr(self, "_torchdynamo_inline", None)  # kept for torch.compile to look into
    compiled = None if source is None else _try_get_jit_cached_function(source)
    if source is None or compiled is None or compiled.qualified_name != self.qualified_name:  # traced, or from a file
        raise untiled(self, args, kwargs, why=SCRIPTED)
    return source(*args, **kwargs)


# A compiled function calls no function that a rule could stand for.
torch.jit.ScriptFunction.__call__ = _on_tiles_too  # type: ignore[method-assign]
