"""Do all ranks that share a stage begin with the same weights? Modules that each process built for itself, without one
seed for all, would differ, and no sum of gradients would ever bring them together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from halocline.plan.layout import Layout
from halocline.runtime.building import Stages
from halocline.runtime.parallel.shard import shard

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
        for _, layer in layers:
            for parameter in layer.parameters():
                if parameter.is_floating_point():
                    weights = shard(parameter.detach())
                    row[1] += weights.sum(dtype=torch.float64)
                    row[3] += torch.linalg.vector_norm(weights, 1, dtype=torch.float64)
        row[2] = row[1] ** 2
    return found


def require_equal(summed: Tensor) -> None:
    """Raises ValueError, on every rank alike, where the ranks of a stage differ."""
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
