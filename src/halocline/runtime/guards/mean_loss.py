"""The loss as an engine takes it: a function of output and target whose value is a mean over samples, and which has
nothing to learn by itself. Refuses what can be seen to be something else.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.nn.functional as F
from torch import nn


def require_mean(loss: Any, microbatches: int) -> None:
    """Raises ValueError for a loss that is no function, sums over the samples of several microbatches, or learns."""
    if not callable(loss):
        raise ValueError(f"loss = {loss!r} is not a function of output and target: pass one, e.g. F.cross_entropy")
    if isinstance(loss, type):
        raise ValueError(f"the loss is the class {loss.__name__}, not one of it: pass {loss.__name__}()")
    reduction = None
    if isinstance(loss, functools.partial) and getattr(loss.func, "__module__", None) == F.__name__:
        reduction = loss.keywords.get("reduction")
    elif type(loss).__module__ == nn.CrossEntropyLoss.__module__:
        reduction = getattr(loss, "reduction", None)
    if reduction == "sum" and microbatches > 1:
        raise ValueError(
            f"the loss has reduction = 'sum', and the {microbatches} microbatches of a step are weighted by their "
            f"samples, as means are: use reduction = 'mean'"
        )
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise ValueError(
            f"the loss, a {type(loss).__name__}, has parameters of its own, which nobody would update: put them into "
            f"the last layer, or freeze them by requires_grad_(False)"
        )
