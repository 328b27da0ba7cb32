"""The loss of logits that tensor ranks hold in parts, some words each: cross-entropy without ever gathering them.

The model's own loss function runs as it is; where it calls cross_entropy on divided logits, this answers. Of N
tokens, each rank has the logits l of `part` words:

    loss = log sum_w exp(l_w - top) - (l_target - top)         top, the sum and the target's logit: one sum over ranks
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from halocline.runtime.guards.errors import is_shortage
from halocline.runtime.parallel.shard import span
from halocline.runtime.parallel.tensor_parallel import gathered, own_words

_CALL = inspect.signature(F.cross_entropy)


def loss_of_parts(loss: Callable[[Any, Any], Tensor], logits: DTensor, target: Any) -> Tensor | None:
    """The loss of divided logits; None where the loss does with them what only whole ones can bear."""
    try:
        with _Answering():
            found = loss(logits, target)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        if is_shortage(error):
            raise
        return None
    return found if isinstance(found, Tensor) and not isinstance(found, DTensor) else None


class _Answering(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.cross_entropy:
            return func(*args, **(kwargs or {}))
        call = _CALL.bind(*args, **(kwargs or {}))
        call.apply_defaults()
        given = call.arguments
        logits, target = given["input"], given["target"]
        if not isinstance(logits, DTensor):
            return func(*args, **(kwargs or {}))
        words = min(1, logits.ndim - 1)  # the dim of classes: the second, or the only one
        plain = given["weight"] is None and given["size_average"] is None and given["reduce"] is None
        if not plain or target.is_floating_point() or not logits.placements[0].is_shard(words):
            given["input"] = gathered(logits)
            return func(*call.args, **call.kwargs)
        first, _ = span(logits)
        part = logits.to_local().movedim(words, -1)
        losses = _CrossEntropy.apply(
            part.reshape(-1, part.shape[-1]),
            target.reshape(-1),
            first,
            logits.shape[words],
            given["ignore_index"],
            given["label_smoothing"],
            logits.device_mesh,
        ).view(target.shape)
        if given["reduction"] == "none":
            return losses
        total = losses.sum()
        return total / (target != given["ignore_index"]).sum() if given["reduction"] == "mean" else total


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, first: int, words: int, ignored: int, smoothing: float, mesh: Any
    ) -> Tensor:
        top = funcol.wait_tensor(funcol.all_reduce(logits.amax(-1), "max", (mesh, 0)))
        shifted = logits - top.unsqueeze(-1)
        counts = target != ignored
        here = counts & own_words(target, first, first + logits.shape[-1], words)
        index = torch.where(here, target - first, 0).unsqueeze(-1)
        picked = torch.where(here, shifted.gather(-1, index).squeeze(-1), 0)
        evenly = shifted.sum(-1) if smoothing else torch.zeros_like(picked)
        grown = shifted.exp_()
        sums = torch.stack([grown.sum(-1), picked, evenly])
        total, picked, evenly = funcol.wait_tensor(funcol.all_reduce(sums, "sum", (mesh, 0))).unbind()
        losses = total.log() - (1 - smoothing) * picked
        if smoothing:
            losses = losses - smoothing / words * evenly
        ctx.save_for_backward(grown.div_(total.unsqueeze(-1)), index, here, counts)
        ctx.smoothing, ctx.words = smoothing, words
        return torch.where(counts, losses, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        softmax, index, here, counts = ctx.saved_tensors
        wanted = (here.to(softmax.dtype) * (1 - ctx.smoothing)).unsqueeze(-1)
        change = softmax - ctx.smoothing / ctx.words if ctx.smoothing else softmax.clone()
        change.scatter_add_(-1, index, -wanted)
        change.mul_(torch.where(counts, gradient, 0).unsqueeze(-1))
        return change, None, None, None, None, None, None
