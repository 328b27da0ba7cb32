"""Which parameters decay, and the learning rate of every step against torch's own schedulers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from halocline.train.optimizers import LearningRate, OptimizerMaker, set_learning_rate
from halocline.train.settings import OptimizerSettings


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2), nn.LayerNorm(2))


def maker(**settings: Any) -> OptimizerMaker:
    return OptimizerMaker(OptimizerSettings(**settings))


def rate(total: int, **settings: Any) -> LearningRate:
    return LearningRate(OptimizerSettings(**settings), total)


def test_biases_and_norms_do_not_decay() -> None:
    net = model()
    optimizer = maker(name="adamw", weight_decay=0.3)(net.parameters())
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: decay[id(p)] for name, p in net.named_parameters()}
    assert {name for name, value in found.items() if value} == {"0.weight", "2.weight"}
    assert set(found.values()) == {0.0, 0.3}


def test_unless_all_shall() -> None:
    (group,) = maker(weight_decay=0.3, decay_all=True)(model().parameters()).param_groups
    assert group["weight_decay"] == 0.3 and len(group["params"]) == 8


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_step_is_torchs(name: str) -> None:
    torch.manual_seed(0)
    ours, theirs = model(), model()
    theirs.load_state_dict(ours.state_dict())
    mine = maker(name=name, momentum=0.8, beta2=0.9)(ours.parameters())
    known: torch.optim.Optimizer
    if name == "sgd":
        known = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.8)
    else:
        known = torch.optim.AdamW(theirs.parameters(), lr=0.05, betas=(0.8, 0.9), weight_decay=0.0)
    set_learning_rate(mine, 0.05)
    for _ in range(3):
        for a, b in zip(ours.parameters(), theirs.parameters()):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        mine.step()
        known.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters()))


def rates(scheduler: lr_scheduler.LRScheduler, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return found


def test_cosine_and_linear_and_warm_up_as_torch_has_them() -> None:
    def fresh() -> torch.optim.Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)

    cosine = lr_scheduler.CosineAnnealingLR(fresh(), T_max=10, eta_min=0.2)
    falling = rate(10, lr=2.0, lr_schedule="cosine", final_lr=0.1)
    assert [falling.at(n) for n in range(10)] == pytest.approx(rates(cosine, 10))
    linear = lr_scheduler.LinearLR(fresh(), 1.0, 0.1, total_iters=10)
    falling = rate(10, lr=2.0, lr_schedule="linear", final_lr=0.1)
    assert [falling.at(n) for n in range(10)] == pytest.approx(rates(linear, 10))
    rising = lr_scheduler.LambdaLR(fresh(), lambda n: min(1.0, (n + 1) / 4))
    ours = rate(9, lr=2.0, warmup=4)
    assert [ours.at(n) for n in range(9)] == pytest.approx(rates(rising, 9))


def test_after_the_end_it_stays_at_its_last() -> None:
    assert rate(10, lr=1.0, lr_schedule="cosine", warmup=2, final_lr=0.25).at(99) == pytest.approx(0.25)
    assert rate(10, lr=1.0, lr_schedule="linear", warmup=10).at(5) == pytest.approx(0.6)  # a run that is all warm-up
