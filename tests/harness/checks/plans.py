"""What runs on each rank of the exactness tests: a plan's steps, compared with the same steps on one device."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Plan
from halocline.runtime import Engine, World
from halocline.runtime.proof import verify
from harness.checks import one_by_one
from harness.plan_models import MODELS


def batch(model: str, samples: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + samples)
    shape = (samples, *MODELS[model][1])
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    places = (samples, *shape[2:]) if model == "dense" else (samples,)
    return x, torch.randint(0, 5, places, generator=generator)


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@lru_cache(maxsize=256)
def reference(model: str, replicas: int, microbatches: int, sizes: tuple[int, ...]) -> verify.Reference:
    """The same steps on one device; equal for all plans with as many replicas and microbatches."""
    return verify.reference(
        MODELS[model][0](),
        Plan.from_flags(split_size=1, parts=microbatches, replicas=replicas, layers=8),
        [batch(model, samples, step) for step, samples in enumerate(sizes)],
        loss=F.cross_entropy,
        optimizer=optimizer,
        seed=3,
        dtype=torch.float64,
    )


@cache
def world() -> World:
    """One world for all plans of this process, so that groups are made once."""
    return World.join(deadline=300)


def compare(model: str, text: str, sizes: list[int], **options: Any) -> dict[str, float]:
    """Run the plan here and report the largest relative differences from one device."""
    plan = Plan.from_toml(text)
    options.setdefault("world", world())
    engine = Engine(
        plan,
        MODELS[model][0](),
        loss=F.cross_entropy,
        optimizer=optimizer,
        seed=3,
        dtype=torch.float64,
        **options,
    )
    known = reference(model, plan.replicas, plan.microbatches, tuple(sizes))
    losses, gradients, parameters, buffers = known.losses, known.gradients, known.parameters, known.buffers
    worst = {"loss": 0.0, "gradient": 0.0, "parameter": 0.0, "buffer": 0.0}

    def note(what: str, ours: Tensor, theirs: Tensor) -> None:
        scale = max(1e-3, theirs.abs().max().item()) if theirs.numel() else 1.0
        worst[what] = max(worst[what], (ours - theirs).abs().max().item() / scale if theirs.numel() else 0.0)

    for step, samples in enumerate(sizes):
        result = engine.step(*batch(model, samples, step))
        note("loss", torch.tensor(result.loss), torch.tensor(losses[step]))
        for name, parameter in engine.named_parameters():
            assert (parameter.grad is None) == (name not in gradients[step]), name
            if parameter.grad is not None:
                note("gradient", parameter.grad, gradients[step][name])
    for name, parameter in engine.named_parameters():
        note("parameter", parameter.detach(), parameters[name])
    for name, buffer in engine.named_buffers():
        note("buffer", buffer.double(), buffers[name].double())
    return worst


def compare_all(cases: list[tuple[str, str, list[int]]]) -> list[dict[str, float] | str]:
    """`compare` for one plan after the other, up to the first that fails, whose traceback is the last answer."""
    return one_by_one(compare, cases)


def gradients_of(plans: list[str], samples: int) -> list[tuple[float, dict[str, Tensor]]]:
    """What one step of each plan gives on this rank, with a model that treats every sample by itself."""
    found = []
    for text in plans:
        layers = [lambda: nn.Linear(6, 6), nn.Tanh, lambda: nn.Linear(6, 6), lambda: nn.Linear(6, 5)]
        engine = Engine(Plan.from_toml(text), layers, loss=F.cross_entropy, world=world(), dtype=torch.float64)
        result = engine.step(*batch("mlp", samples, 0))
        found.append((result.loss, {name: p.grad.clone() for name, p in engine.named_parameters()}))  # type: ignore[union-attr]
    return found


def one_step(model: str, text: str, samples: int, autocast: bool = False) -> tuple[float, int]:
    """Loss and samples of a step in float32, or under autocast to bfloat16."""
    dtype = torch.bfloat16 if autocast else None
    engine = Engine(Plan.from_toml(text), MODELS[model][0](), loss=F.cross_entropy, world=world(), autocast=dtype)
    x, y = batch(model, samples, 0)
    result = engine.step(x.float(), y)
    return result.loss, result.samples


def exchanges_of(model: str, texts: list[str]) -> list[int]:
    """How often the tiles of this rank exchange pixels in the second step of each plan."""
    found = []
    for text in texts:
        plan = Plan.from_toml(text)
        engine = Engine(plan, MODELS[model][0](), loss=F.cross_entropy, world=world(), dtype=torch.float64)
        engine.step(*batch(model, 4, 0))  # the first one also records what a group reaches for
        counter = world().exchanger(tuple(range(plan.world_size))).counter
        before = counter.exchanges
        engine.step(*batch(model, 4, 1))
        found.append(counter.exchanges - before)
    return found
