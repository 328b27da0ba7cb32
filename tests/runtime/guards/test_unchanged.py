"""State that a forward keeps for the next: refused where it would not be one device's, and only there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random, getstate, random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from halocline.plan import Plan, Stage
from halocline.runtime.proof import verify
from harness.one_process import AGAIN, CUT, MIRRORED, batch, engine, linear, sgd


class Box:
    def __init__(self) -> None:
        self.calls = 0


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


CALLS = 0


class Keeps(nn.Module):
    """Does something with itself in every forward."""

    every = 0

    def __init__(self, what: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.what, self.inner = what, nn.Linear(4, 4)
        self.calls, self.box, self.list, self.dict = 0, Box(), [0], {"calls": 0}
        self.average, self.last, self.table = torch.zeros(4).double(), torch.zeros(4).double(), None
        self.rows, self.generator, self.maps = 0, torch.Generator().manual_seed(1), []
        self.slots, self.array, self.chance, self.dice = Slots(), numpy.zeros(2), numpy.random.default_rng(0), Random(0)

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


def counts_in_slots(self: Any, x: Tensor) -> None:
    self.slots.calls += 1


def counts_in_its_class(self: Any, x: Tensor) -> None:
    Keeps.every += 1


def counts_in_a_global(self: Any, x: Tensor) -> None:
    global CALLS
    CALLS += 1


def counts_in_an_array(self: Any, x: Tensor) -> None:
    self.array[0] += 1


def draws_by_numpy(self: Any, x: Tensor) -> None:
    self.chance.random()


def draws_by_python(self: Any, x: Tensor) -> None:
    self.dice.random()


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
    counts_in_slots: r"slots\.calls",
    counts_in_its_class: r"Keeps\.every",
    counts_in_a_global: r"what\.CALLS",
    counts_in_an_array: "array",
    draws_by_numpy: "chance",
    draws_by_python: "dice",
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


def worst(plan: Plan, layers: list[Any], sizes: tuple[int, ...] = (4, 5, 4)) -> float:
    batches = [batch(n) for n in sizes]
    known = verify.reference(layers, plan, batches, loss=F.cross_entropy, optimizer=sgd, dtype=torch.float64)
    return verify.compare(engine(plan, layers), batches, known).worst


class Average(nn.Module):
    """Takes an average away that it keeps in place, and adds noise of Python's and NumPy's."""

    def __init__(self) -> None:
        super().__init__()
        self.average = torch.ones(4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        self.average.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.average


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + random()) + numpy.random.rand()


def test_a_run_without_data_leaves_an_average_as_it_was() -> None:
    assert worst(CUT, [linear, Average, nn.Tanh, linear]) < 1e-10


@pytest.mark.parametrize("plan", [CUT, AGAIN, MIRRORED], ids=["kept", "recomputed", "mirrored"])
def test_random_numbers_of_python_and_numpy(plan: Plan) -> None:
    layers = [linear, Noise, nn.Tanh, linear]
    assert worst(plan, layers) < 1e-10
    run, before = engine(plan, layers), (getstate(), numpy.random.get_state()[1].tolist())
    run.step(*batch(4))
    assert before == (getstate(), numpy.random.get_state()[1].tolist())


class Momentum(nn.Module):
    """An encoder and its average, which begins as the encoder."""

    def __init__(self, through_data: bool) -> None:
        super().__init__()
        self.query, self.key, self.through_data = linear(), linear(), through_data
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for mean, new in zip(self.key.parameters(), self.query.parameters()):
            if self.through_data:
                mean.data = 0.9 * mean.data + 0.1 * new.data
            else:
                with torch.no_grad():
                    mean.mul_(0.9).add_(0.1 * new)
        return self.query(x) + self.key(x)


@pytest.mark.parametrize("through_data", [False, True])
def test_a_parameter_that_a_forward_changes(through_data: bool) -> None:
    layers = [linear, lambda: Momentum(through_data), nn.Tanh, linear]
    assert worst(Plan.from_flags(layers=4, split_size=1, parts=2), layers) < 1e-10
    for plan in (AGAIN, MIRRORED):
        with pytest.raises(ValueError, match=r"parameter 1\.key\.weight, which would happen more than once"):
            worst(plan, layers)
    with pytest.raises(ValueError, match=r"backwards of earlier microbatches|that of an earlier microbatch"):
        worst(CUT, layers)


class UsesStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) + self.norm.running_mean


class Renorm(nn.BatchNorm1d):
    """Uses its statistics in training, too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (self.running_var + 1).clone()


class Plain(nn.BatchNorm1d):
    """Written out, and a BatchNorm all the same."""

    def forward(self, x: Tensor) -> Tensor:
        mean, variance, f = x.mean(0), x.var(0, correction=0), self.momentum
        if self.training:
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean = (1 - f) * self.running_mean + f * mean
                self.running_var = (1 - f) * self.running_var + f * variance * len(x) / (len(x) - 1)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


def test_statistics_that_a_forward_uses() -> None:
    for plan in (AGAIN, MIRRORED):
        with pytest.raises(ValueError, match=r"in training uses the running statistics of 1\.norm, of which"):
            worst(plan, [linear, UsesStatistics, nn.Tanh, linear])
        with pytest.raises(ValueError, match="in training uses the running statistics of 1, of which"):
            worst(plan, [linear, lambda: Renorm(4), nn.Tanh, linear])
        assert worst(plan, [linear, lambda: Plain(4), nn.Tanh, linear]) < 1e-10
    assert worst(CUT, [linear, UsesStatistics, nn.Tanh, linear]) < 1e-10


@pytest.mark.parametrize("make", [count, lambda: (n for n in range(99)), lambda: iter(range(99))])
def test_an_iterator_that_forwards_advance(make: Callable[[], Any]) -> None:
    """Nobody can set it back: not a run without data, and no recomputation."""

    def layers() -> list[Any]:
        layer = Keeps(lambda self, x: next(self.numbers))
        layer.numbers = make()
        return [linear, layer, nn.Tanh, linear]

    with pytest.raises(ValueError, match=r"a forward advances an iterator that its module keeps \(numbers\)"):
        engine(CUT, layers()).step(*batch(4))
    with pytest.raises(ValueError, match=r"a forward advances its layer's iterator 1\.numbers, which would happen"):
        engine(MIRRORED, layers()).step(*batch(4))
    alone = layers()
    engine(Plan((Stage((0, 4)),), "1f1b", 2), alone).step(*batch(4))
    assert next(alone[1].numbers) == 2


def test_one_module_in_two_stages_that_counts() -> None:
    both = Counts()
    with pytest.raises(ValueError, match=r"a forward changes 1\.calls, which layers 1 and 2 of several stages have"):
        engine(CUT, [linear(), both, both, linear()]).step(*batch(4))


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Rereads(nn.Module):
    """A checkpoint updates statistics in the backward, and the next forward uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.norm, x, use_reentrant=False) + self.norm.running_mean


def test_statistics_that_a_backward_updates_and_a_forward_uses() -> None:
    with pytest.raises(
        ValueError, match=r"uses the running statistics of 1\.norm, and torch\.utils\.checkpoint updates"
    ):
        engine(CUT, [linear, Rereads, nn.Tanh, linear]).step(*batch(4))
