"""What an engine is given, and refuses before its first step: a loss that is no mean, layers that cannot be shared out,
weights that differ where ranks share a stage.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from halocline.plan.layout import Layout
from halocline.runtime.layers import Stages, modules_in, parameters_of
from halocline.runtime.parallel.shard import shard


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


def refuse_lazy(name: str, layer: nn.Module) -> None:
    """A lazy module has no parameters that ranks could compare, share or update before it has seen data."""
    for place, module in modules_in([(name, layer)]):
        if any(is_lazy(t) for t in (*module._parameters.values(), *module._buffers.values()) if t is not None):
            raise ValueError(
                f"{place} is a {type(module).__name__}, whose parameters have no shape before its first forward: run "
                f"the model once on a sample before, or name the number of channels"
            )


def refuse_sync_batch_norm(name: str, layer: nn.Module) -> None:
    """On tiles and lanes a SyncBatchNorm is BatchNorm; elsewhere it would wait for processes of other stages, unless it
    was given its own or has nothing to ask them."""
    found = [module for module in layer.modules() if isinstance(module, nn.SyncBatchNorm)]
    if any(module.training and module.process_group is None for module in found):
        raise ValueError(
            f"layer {name} holds a SyncBatchNorm, which sums over all processes, whatever stage they have: use "
            f"BatchNorm, whose statistics are those of the whole microbatch"
        )


_LEAST = 1e-6
"""Of the sum of absolute values: less than two random beginnings ever differ by, more than rounding does."""


def fingerprints(layout: Layout, rank: int, stages: Stages, device: torch.device) -> Tensor:
    """Per stage and shard of it: 1, the sum of this rank's weights, its square, and the sum of their absolute values.
    All zero for what the rank does not hold. To be summed over all ranks."""
    most = max(stage.tensor for stage in layout.plan.stages)
    found = torch.zeros(len(layout.plan.stages), most, 4, dtype=torch.float64, device=device)
    for stage, layers in stages.items():
        row = found[stage, layout.tensor_index(rank, stage)]
        row[0] = 1
        for parameter in parameters_of(layers):
            if parameter.is_floating_point():
                weights = shard(parameter)
                row[1] += weights.sum(dtype=torch.float64)
                row[3] += torch.linalg.vector_norm(weights, 1, dtype=torch.float64)
        row[2] = row[1] ** 2
    return found


def require_equal(summed: Tensor) -> None:
    """Raises ValueError, on every rank alike, where the ranks of a stage differ: modules that each process built for
    itself, without one seed for all, would stay apart, whatever gradients are summed."""
    count, total, squares, size = summed.cpu().unbind(-1)
    count = count.clamp(min=1)
    apart = squares / count - (total / count) ** 2 > (_LEAST * size / count) ** 2
    if apart.any():
        stage = int(apart.nonzero()[0, 0])
        raise ValueError(
            f"the {int(count[stage].max())} ranks that share stage {stage} begin with different weights: pass "
            f"functions that make the layers, which are seeded, or call torch.manual_seed with one number before you "
            f"build them"
        )
