"""What runs on each rank of the tests of tied weights, tensor parallelism and sharded parameters: steps of a small
model under a plan, compared with the same steps on one device, where tied weights are one nn.Parameter."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from halocline.models.model import SPANS, Model, make
from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.layers import one_device
from halocline.runtime.parallel.shard import whole
from halocline.runtime.parallel.tied import tie
from halocline.runtime.proof import verify
from harness.checks import one_by_one
from harness.checks.plans import world

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
    return one_by_one(compare, cases, **options)


def exact(answers: list[Any]) -> list[verify.Differences]:
    """Every rank's differences, merged over the cases; all below 1e-10."""
    for cases in answers:
        for found in cases:
            assert isinstance(found, verify.Differences), found
            assert found.worst < 1e-10
    return [found for cases in answers for found in cases]


def plan(name: str, **flags: Any) -> str:
    return Plan.from_flags(layers=len(model(name).layers), **flags).to_toml()


def clipped(name: str, text: str) -> tuple[float, float]:
    """The largest difference of a clipped gradient from one device's, and how many of its parameters are not here."""
    engine = engine_of(name, text, {}, clip=0.1)
    found = model(name)
    x, y = batch(found, 4, 0)
    engine.step(x, y)
    net = tie(one_device(found.layers, SEED), found.tied).double()
    parts = x if isinstance(x, tuple) else (x,)
    for i in range(4):
        value: Any = tuple(t[i : i + 1] for t in parts)
        (found.loss(net(value if len(parts) > 1 else value[0]), y[i : i + 1]) / 4).backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    assert norm > 0.2, "nothing to clip"
    theirs = dict(net.named_parameters())
    worst = 0.0
    for key, parameter in engine.named_parameters():
        expected = theirs.pop(key).grad
        assert parameter.grad is not None and expected is not None
        worst = max(worst, float((whole(parameter.grad) - expected).abs().max()))
    return worst, float(len(theirs))
