"""What runs on each rank of the tests of plans: steps of an image model under a plan, compared with one device."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from halocline.models.model import SEGMENTATION, Model, make
from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.proof import verify
from halocline.tiling import TileTensor
from harness.checks import one_by_one
from harness.checks.plans import optimizer, world

Case = tuple[str, dict[str, Any], tuple[int, int], str, bool]
"""Model, its options, image size, plan, and whether the output is still on tiles at the loss."""

SAMPLES = (6, 5)
"""Of the steps that are compared."""


class Watched:
    """A model's loss that remembers what it was given."""

    def __init__(self, model: Model) -> None:
        self.loss = model.loss
        self.kinds: set[type] = set()

    def __call__(self, output: Any, target: Any) -> Tensor:
        self.kinds |= {type(output), type(target)} if target.ndim > 1 else {type(output)}
        return self.loss(output, target)


def batches(model: Model, size: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for samples in SAMPLES:
        images = torch.randn(samples, model.channels, *size, generator=generator, dtype=torch.float64)
        places = size if model.task == SEGMENTATION else ()
        made.append((images, torch.randint(0, model.classes, (samples, *places), generator=generator)))
    return made


@lru_cache(maxsize=16)
def reference(name: str, options: str, size: tuple[int, int], microbatches: int, replicas: int) -> verify.Reference:
    """The same steps on one device; the same for all plans with as many microbatches."""
    model = make(name, **dict(eval(options)))
    plan = Plan.from_flags(split_size=1, parts=microbatches, replicas=replicas, layers=len(model.layers))
    steps = batches(model, size)
    return verify.reference(model.layers, plan, steps, loss=model.loss, optimizer=optimizer, dtype=torch.float64)


def compare(name: str, options: dict[str, Any], size: tuple[int, int], text: str, tiled: bool) -> float:
    plan, model = Plan.from_toml(text), make(name, **options)
    loss = Watched(model)
    engine = Engine(plan, model.layers, loss=loss, optimizer=optimizer, world=world(), dtype=torch.float64)
    known = reference(name, repr(sorted(options.items())), size, plan.microbatches, plan.replicas)
    found = verify.compare(engine, batches(model, size), known)
    assert loss.kinds <= {TileTensor if tiled else Tensor}, loss.kinds
    return found.worst


def compare_all(cases: list[Case]) -> list[float | str]:
    """One plan after the other, up to the first that fails, whose traceback is the last answer."""
    return one_by_one(compare, cases)
