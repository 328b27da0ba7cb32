"""Running statistics that are updated again in the backward, and more than once in a forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.proof import verify
from harness.checks.plans import world
from harness.one_process import AGAIN, CUT, MIRRORED, sgd
from harness.ranks import on_processes


class Again(nn.Module):
    """Runs its parts once more in the backward."""

    def __init__(self, *parts: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.parts, self.reentrant = nn.Sequential(*parts), reentrant

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.parts, x, use_reentrant=self.reentrant)
        return found


class Sometimes(nn.Module):
    """Normalises some of the microbatches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3, momentum=0.4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.training and torch.rand(()) < 0.5 else x


def conv() -> nn.Module:
    return nn.Conv2d(3, 3, 3, padding=1)


def layers(reentrant: bool) -> list[Any]:
    average = {"momentum": None}
    instance = {"track_running_stats": True}
    return [
        lambda: nn.Sequential(conv(), nn.BatchNorm2d(3)),
        lambda: Again(conv(), nn.BatchNorm2d(3), nn.ReLU(), conv(), nn.BatchNorm2d(3), reentrant=reentrant),
        lambda: Again(conv(), nn.BatchNorm2d(3, **average), nn.InstanceNorm2d(3, **instance), reentrant=reentrant),  # type: ignore[arg-type]
        lambda: nn.Sequential(Sometimes(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5)),
    ]


def compare(plan: Plan, reentrant: bool, **options: Any) -> float:
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(n, 3, 9, 8, generator=generator, dtype=torch.float64), torch.arange(n) % 5) for n in (8, 9, 8)
    ]
    given: dict[str, Any] = {"loss": F.cross_entropy, "optimizer": sgd, "dtype": torch.float64}
    known = verify.reference(layers(reentrant), plan, batches, **given)
    return verify.compare(Engine(plan, layers(reentrant), **given, **options), batches, known).worst


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("plan", [CUT, AGAIN, MIRRORED], ids=["kept", "recomputed", "mirrored"])
def test_statistics_that_a_checkpoint_updates_again(plan: Plan, reentrant: bool) -> None:
    assert compare(plan, reentrant) < 1e-10


def compare_all(cases: list[tuple[str, bool]]) -> float:
    return max(compare(Plan.from_toml(text), reentrant, world=world()) for text, reentrant in cases)


def test_statistics_that_a_checkpoint_updates_again_on_two_ranks() -> None:
    def plan(**flags: Any) -> str:
        return Plan.from_flags(layers=4, **flags).to_toml()

    pipeline, gems = plan(split_size=2, parts=4), plan(split_size=2, parts=4, schedule="gems")
    replicas, halves = plan(split_size=1, parts=2, replicas=2), plan(split_size=2, parts=4, schedule="zb-h1")
    tiles = plan(split_size=1, parts=2, num_spatial_parts=2)
    cases = [(text, reentrant) for text in (pipeline, gems, replicas) for reentrant in (False, True)]
    assert max(on_processes(2, compare_all, [*cases, (halves, False), (tiles, False)])) < 1e-10


def test_statistics_are_updated_at_once_when_no_backward_updates_them() -> None:
    plain = [conv, lambda: nn.BatchNorm2d(3), nn.ReLU, lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 9 * 8, 5))]
    run = Engine(CUT, plain, loss=F.cross_entropy)
    assert run.statistics
    run.step(torch.randn(4, 3, 9, 8), torch.arange(4))
    assert not run.statistics
