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
        present = torch.tensor([p.grad is not None for p in members], dtype=dtype, device=device)
        given = [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in members]
        flat = exchanger.all_reduce(torch.cat([present, *given]))
        count, *sums = flat.split([len(members), *(p.numel() for p in members)])
        for p, total, used in zip(members, sums, (count > 0).tolist()):
            if used and p.grad is None:
                p.grad = total.view(p.shape).clone()
            elif used:
                assert p.grad is not None
                p.grad.copy_(total.view(p.shape))
