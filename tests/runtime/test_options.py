"""Options of the engine that change where work is done, not what comes out: a sharded optimizer, clipped gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.layers import one_device
from harness.checks import plans as check_plans
from harness.checks.plans import batch, optimizer
from harness.plan_models import MODELS
from harness.ranks import on_processes
from harness.teams import ONE, plan_of, tiles

PLANS = {
    "tiles": plan_of([tiles(2, 2)], "gpipe", microbatches=2),
    "gems": plan_of([ONE, ONE, ONE, ONE], "gems"),
    "replicas": plan_of([ONE, ONE], microbatches=2, replicas=2),
}


def sharded(text: str) -> tuple[dict[str, float], int, int]:
    """Differences from one device, and the numbers of momentum kept here and in all."""
    made: list[Engine] = []
    start = Engine.__init__

    def remember(self: Engine, *args: object, **kwargs: object) -> None:
        start(self, *args, **kwargs)  # type: ignore[arg-type]
        made.append(self)

    Engine.__init__ = remember  # type: ignore[method-assign]
    try:
        worst = check_plans.compare("cnn", text, [8, 8], shard_optimizer=True)
    finally:
        Engine.__init__ = start  # type: ignore[method-assign]
    kept = held = 0
    for update in made[0].optimizers.values():
        inner = getattr(update, "optim", update)
        kept += sum(t.numel() for state in inner.state.values() for t in state.values() if isinstance(t, torch.Tensor))
        held += sum(p.numel() for group in update.param_groups for p in group["params"])
    return worst, kept, held


@pytest.mark.parametrize("name", PLANS)
def test_a_sharded_optimizer_changes_nothing_but_where_its_state_lies(name: str) -> None:
    answers = on_processes(4, sharded, PLANS[name].to_toml())
    for worst, kept, held in answers:
        assert max(worst.values()) < 1e-10
        assert kept < held, "each rank keeps the state of a part of what it holds"
    copies = {"tiles": 4, "gems": 2, "replicas": 2}[name]
    assert sum(kept for _, kept, _ in answers) == sum(held for _, _, held in answers) / copies


def clipped(text: str, limit: float) -> float:
    """The largest difference of a gradient from one device's, clipped by torch."""
    plan = Plan.from_toml(text)
    engine = Engine(
        plan,
        MODELS["cnn"][0](),
        loss=F.cross_entropy,
        seed=3,
        dtype=torch.float64,
        clip=limit,
        world=check_plans.world(),
    )
    x, y = batch("cnn", plan.microbatches * plan.replicas, 0)
    engine.step(x, y)
    net = one_device(MODELS["cnn"][0](), 3).double()
    for i in range(len(x)):
        (F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]) / len(x)).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), limit)
    theirs = dict(net.named_parameters())
    worst = 0.0
    for name, parameter in engine.named_parameters():
        assert parameter.grad is not None
        worst = max(worst, float((parameter.grad - theirs[name].grad).abs().max()))
    return worst


@pytest.mark.parametrize("limit", [0.01, 100.0])
@pytest.mark.parametrize("name", PLANS)
def test_gradients_are_clipped_by_the_norm_of_the_whole_model(name: str, limit: float) -> None:
    assert max(on_processes(4, clipped, PLANS[name].to_toml(), limit)) < 1e-12


def test_the_optimizer_of_the_tests_has_state() -> None:
    assert optimizer([torch.nn.Parameter(torch.zeros(1))]).defaults["momentum"]
