"""State that a forward keeps for the next: refused where it would not be one device's, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_odd_models import AGAIN, CUT, MIRRORED, batch, engine, linear, sgd
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from halocline.plan import Plan
from halocline.runtime import verify


class Box:
    def __init__(self) -> None:
        self.calls = 0


class Keeps(nn.Module):
    """Does something with itself in every forward."""

    def __init__(self, what: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.what, self.inner = what, nn.Linear(4, 4)
        self.calls, self.box, self.list, self.dict = 0, Box(), [0], {"calls": 0}
        self.average, self.last, self.table = torch.zeros(4).double(), torch.zeros(4).double(), None
        self.rows, self.generator, self.maps = 0, torch.Generator().manual_seed(1), []

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        self.what(self, y)
        return y


def calls(self: Any, x: Tensor) -> None:
    self.calls += 1


def counts_in_an_object(self: Any, x: Tensor) -> None:
    self.box.calls += 1


def counts_in_a_list(self: Any, x: Tensor) -> None:
    self.list[0] += 1


def appends(self: Any, x: Tensor) -> None:
    self.list.append(x)


def counts_in_a_dict(self: Any, x: Tensor) -> None:
    self.dict["calls"] += 1


def averages(self: Any, x: Tensor) -> None:
    self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)


def averages_in_place(self: Any, x: Tensor) -> None:
    self.average.mul_(0.9).add_(x.detach().mean(0))


def averages_late(self: Any, x: Tensor) -> None:
    self.table = x.detach().mean(0) if self.table is None else 0.9 * self.table + x.detach().mean(0)


def draws(self: Any, x: Tensor) -> None:
    torch.rand(2, generator=self.generator)


CHANGES = {
    calls: "calls",
    counts_in_an_object: r"box\.calls",
    counts_in_a_list: r"list\[0\]",
    appends: "list",
    counts_in_a_dict: r"dict\['calls'\]",
    averages: "average",
    averages_in_place: "average",
    averages_late: "table",
    draws: "generator",
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_attribute_that_a_forward_changes(what: Callable[..., object]) -> None:
    layers = [linear, lambda: Keeps(what), nn.Tanh, linear]
    engine(CUT, layers).step(*batch(4))
    for plan in (AGAIN, MIRRORED):
        with pytest.raises(ValueError, match=rf"attribute 1\.{CHANGES[what]}, which would happen more than once"):
            run = engine(plan, layers)
            for _ in range(2):
                run.step(*batch(4))


def counts_in_a_hook() -> nn.Module:
    seen: list[int] = []
    layer = linear()
    layer.register_forward_hook(lambda *_: seen.append(1))
    return layer


def test_a_hook_that_counts() -> None:
    with pytest.raises(ValueError, match=r"attribute 1\._forward_hooks.*, which would happen more than once"):
        engine(AGAIN, [linear, counts_in_a_hook, nn.Tanh, linear]).step(*batch(4))


def saves(self: Any, x: Tensor) -> None:
    self.last, self.loss, self.rows, self.size = x, x.square().mean(), x.shape[0], x.shape
    self.dict["attention"] = (x, x.detach())
    self.maps = []
    self.maps.append(x)


def makes_once(self: Any, x: Tensor) -> None:
    if self.table is None:
        self.table = torch.ones(4)
    self.dict.setdefault(tuple(x.shape), self.table)


def makes_for_a_size(self: Any, x: Tensor) -> None:
    if self.rows != x.shape[0]:
        self.rows, self.table = x.shape[0], torch.ones(x.shape[0])


@pytest.mark.parametrize("plan", [CUT, AGAIN, MIRRORED], ids=["kept", "recomputed", "mirrored"])
@pytest.mark.parametrize("what", [saves, makes_once, makes_for_a_size])
def test_what_is_kept_for_inspection_or_made_once(what: Callable[..., object], plan: Plan) -> None:
    layers = [linear, lambda: Keeps(what), lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), linear]
    batches = [batch(4), batch(5), batch(4)]
    known = verify.reference(layers, plan, batches, loss=F.cross_entropy, optimizer=sgd, dtype=torch.float64)
    assert verify.compare(engine(plan, layers), batches, known).worst < 1e-10


class Again(nn.Module):
    """Runs its part once more in the backward."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.part, x, use_reentrant=False)
        return found


def test_state_that_a_checkpoint_changes_again() -> None:
    def layers(what: Callable[..., object]) -> list[Any]:
        return [linear, lambda: Again(nn.Sequential(Keeps(what), linear())), nn.Tanh, linear]

    with pytest.raises(ValueError, match=r"attribute 1\.part\.0\.calls, and torch.utils.checkpoint runs it again"):
        engine(CUT, layers(calls)).step(*batch(4))
    engine(CUT, layers(saves)).step(*batch(4))


def test_a_hook_that_counts_backwards_is_none_of_that() -> None:
    layer, seen = linear(), []
    layer.register_full_backward_hook(lambda *_: seen.append(1))
    engine(CUT, [linear, layer, nn.Tanh, linear]).step(*batch(4))
    assert len(seen) == CUT.microbatches
