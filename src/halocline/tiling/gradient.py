"""The backward pass of a loss that every rank computed alike, and the sum of the parameters' gradients over ranks.

Every rank differentiates loss / n; each communication has its exact adjoint; so the one-device gradient of a parameter
is the sum of the ranks' gradients, whether the parameter was used on tiles or on gathered tensors. Knows no operator.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from halocline.tiling.exchanger import Exchanger, exchanger_for


def backward(
    loss: Tensor, model: nn.Module | Iterable[Tensor], group: dist.ProcessGroup | Exchanger | None = None
) -> None:
    """Add the one-device gradients of `loss` to the `.grad` of every parameter, on every rank.

    `loss` is a scalar computed alike on every rank. `model` is a module or its parameters, in the same order on every
    rank. A parameter that no rank used keeps its `.grad`; one that only some ranks used counts as zero on the others.
    """
    exchanger = exchanger_for(group)
    parameters = [p for p in (model.parameters() if isinstance(model, nn.Module) else model) if p.requires_grad]
    before = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        (loss / exchanger.size).backward()
        sum_gradients(parameters, exchanger)
    finally:
        for p, old in zip(parameters, before):
            if old is not None:
                p.grad = old if p.grad is None else old.add_(p.grad)


@torch.no_grad()
def sum_gradients(parameters: list[Tensor], exchanger: Exchanger) -> None:
    """Replace each `.grad` by its sum over ranks: one flat reduction per dtype and device."""
    if exchanger.size == 1:
        return
    buckets: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for p in parameters:
        buckets.setdefault((p.dtype, p.device), []).append(p)
    for (dtype, device), members in buckets.items():
        # The first len(members) numbers say who has a gradient, so that None on every rank stays None.
        flat = torch.zeros(len(members) + sum(p.numel() for p in members), dtype=dtype, device=device)
        places = flat[len(members) :].split([p.numel() for p in members])
        present = [p.grad is not None for p in members]
        flat[: len(members)] = torch.tensor(present, dtype=dtype, device=device)
        for p, place in zip(members, places):
            if p.grad is not None:
                place.copy_(p.grad.reshape(-1))
        exchanger.all_reduce(flat)
        for p, place, used in zip(members, places, (flat[: len(members)] > 0).tolist()):
            if used and p.grad is None:
                p.grad = place.view(p.shape).clone()
            elif used:
                assert p.grad is not None
                p.grad.copy_(place.view(p.shape))
