"""What runs on each rank of the tests of tied weights, tensor parallelism and sharded parameters: steps of a small
model under a plan, compared with the same steps on one device, where tied weights are one nn.Parameter."""

from __future__ import annotations

import traceback
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from halocline.models.model import SPANS, Model, make
from halocline.plan import Plan
from halocline.runtime import Engine, World
from halocline.runtime.proof import verify

TINY: dict[str, Any] = {"layers": 2, "hidden": 8, "heads": 2, "vocab": 11, "seq": 5}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt3-small", TINY),
    "bert": ("bert-base-uncased", TINY),
    "t5": ("t5-small", TINY),
    "bloom": ("bloom-3b", TINY),
    "wide-resnet": ("wide-resnet50_2", {"base_width": 2, "num_classes": 5}),
}
SEED = 3


@cache
def world() -> World:
    """One world for all plans of this process, so that groups are made once."""
    return World.join(deadline=300)


@cache
def model(name: str, **options: Any) -> Model:
    address, given = MODELS[name]
    return make(address, **{**given, **options})


def batch(found: Model, samples: int, step: int) -> tuple[Any, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + samples)
    if not found.sequence:
        x = torch.randn(samples, 3, 64, 64, generator=generator, dtype=torch.float64)
        return x, torch.randint(0, found.classes, (samples,), generator=generator)

    def words() -> Tensor:
        return torch.randint(0, found.classes, (samples, found.sequence), generator=generator)

    targets = words()
    targets[0, :2] = -100
    return ((words(), words()) if found.task == SPANS else words()), targets


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3)


@lru_cache(maxsize=64)
def reference(name: str, options: tuple[tuple[str, Any], ...], replicas: int, microbatches: int) -> verify.Reference:
    """The same steps on one device; equal for all plans with as many replicas and microbatches."""
    found = model(name, **dict(options))
    samples = replicas * microbatches * 2
    return verify.reference(
        found.layers,
        Plan.from_flags(split_size=1, parts=microbatches, replicas=replicas, layers=len(found.layers)),
        [batch(found, samples, step) for step in range(2)],
        loss=found.loss,
        optimizer=optimizer,
        tied=found.tied,
        seed=SEED,
        dtype=torch.float64,
    )


def engine_of(name: str, text: str, given: dict[str, Any], **options: Any) -> Engine:
    found = model(name, **given)
    return Engine(
        Plan.from_toml(text),
        found.layers,
        loss=found.loss,
        optimizer=optimizer,
        tied=found.tied,
        world=world(),
        seed=SEED,
        dtype=torch.float64,
        **options,
    )


def compare(name: str, text: str, given: dict[str, Any] | None = None, **options: Any) -> verify.Differences:
    """Run the plan here and report the differences from one device."""
    engine = engine_of(name, text, given or {}, **options)
    plan = engine.plan
    known = reference(name, tuple(sorted((given or {}).items())), plan.replicas, plan.microbatches)
    found = model(name, **(given or {}))
    samples = plan.replicas * plan.microbatches * 2
    return verify.compare(engine, [batch(found, samples, step) for step in range(2)], known)


def compare_all(cases: list[tuple[Any, ...]], **options: Any) -> list[verify.Differences | str]:
    """`compare` for one case after the other, up to the first that fails, whose traceback is the last answer."""
    found: list[verify.Differences | str] = []
    for case in cases:
        try:
            found.append(compare(*case, **options))
        except Exception:
            found.append(traceback.format_exc())
            break
    return found
