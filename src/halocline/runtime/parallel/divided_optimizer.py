"""An optimizer whose state is divided over the ranks that share a stage: PyTorch's ZeRO-1, with what it lacks. Knows
parameters and a group of ranks; nothing of stages.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
import torch.distributed as dist

from halocline.runtime.parallel.shard import shard


def divided(whole: torch.optim.Optimizer, group: Any) -> torch.optim.Optimizer:
    """The same optimizer as `whole`, which has not stepped yet, with the same groups of parameters; each rank of the
    process group keeps the state of a part of them, updates that part and sends it to the others."""
    with warnings.catch_warnings():  # torch warns of its own imports
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer

    class Divided(ZeroRedundancyOptimizer):
        """PyTorch's sends parameters as they are; the shard of one travels as the plain tensor it is."""

        def _broadcast_params_from_rank(self, rank: int) -> list[Any]:
            source = dist.get_global_rank(group, rank)
            updated = [p for part in self._partition_parameters()[rank] for p in part["params"]]  # type: ignore[attr-defined]
            return [dist.broadcast(shard(p), source, group, async_op=True) for p in updated]

    kind = type(whole)
    taken = inspect.signature(kind).parameters
    defaults = {name: value for name, value in whole.defaults.items() if name in taken}
    return Divided([dict(each) for each in whole.param_groups], kind, group, **defaults)
