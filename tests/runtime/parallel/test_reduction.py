"""Gradients of every kind are summed over the ranks that share a stage, or refused by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.plan import Plan, Stage
from halocline.runtime import Engine
from halocline.runtime.parallel import reduction
from halocline.runtime.processes.world import World
from harness.ranks import on_processes


class Turned(nn.Module):
    """Complex weights."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.phase = nn.Parameter(torch.randn(3, 1, 1, dtype=torch.complex128, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.phase).abs()


class Looked(nn.Module):
    """An embedding whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3, sparse=True).double()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table((x[:, 0].detach().abs() * 9).long() % 4).movedim(-1, 1)


def step(first: type[nn.Module]) -> tuple[Tensor, Tensor]:
    """The first parameter's gradient after a step on two tiles, and on one device."""
    x = torch.randn(4, 3, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.zeros(4, 3, dtype=torch.float64)
    layers = [first(), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())]
    plan = Plan((Stage((0, 2), tiles=(1, 2)),), microbatches=2)
    engine = Engine(plan, layers, loss=F.mse_loss, world=World.join(deadline=300))
    engine.step(x, target)
    one = nn.Sequential(first(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    F.mse_loss(one(x), target).backward()
    found = [next(iter(parameters)).grad for parameters in (engine.parameters(), one.parameters())]
    assert found[0] is not None and found[1] is not None
    return found[0], found[1]


def test_complex_gradients_are_summed() -> None:
    for grad, one_device in on_processes(2, step, Turned):
        torch.testing.assert_close(grad, one_device, rtol=1e-12, atol=1e-12)


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"shape \(4, 3\) has a torch.sparse_coo gradient.*sparse=False"):
        on_processes(2, step, Looked)


def tiles_after_a_step() -> Tensor | None:
    """A loop of one's own beside an engine, on the same ranks."""
    torch.manual_seed(0)
    plan = Plan((Stage((0, 2), (1, 2)),))
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.Flatten()]
    engine = Engine(plan, layers, loss=F.mse_loss, dtype=torch.float64, world=World.join(deadline=300))
    engine.step(torch.randn(2, 1, 4, 6, dtype=torch.float64), torch.zeros(2, 48, dtype=torch.float64))
    conv = nn.Conv2d(1, 1, 3, padding=1).double()
    conv(tiling.tile(torch.ones(1, 1, 4, 6, dtype=torch.float64), (1, 2))).mean().backward()
    return conv.bias.grad if conv.bias is not None else None


def test_sums_are_put_off_during_a_step_only() -> None:
    for gradient in on_processes(2, tiles_after_a_step):
        assert gradient is not None and gradient.item() == pytest.approx(1.0, abs=1e-12)


class Halved(nn.Module):
    """Ranks of the second lane do not use `odd`; nobody uses `none`."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("all", "odd", "none"):
            self.register_parameter(name, nn.Parameter(torch.ones(3, dtype=torch.float64)))


def summed(bucket: int) -> tuple[int, dict[str, Tensor | None]]:
    world = World.join(deadline=300)
    world.make_groups([(0, 1)])
    model = Halved()
    model.all.grad = torch.full((3,), 1.0 + world.rank, dtype=torch.float64)
    if world.rank:
        model.odd.grad = torch.full((3,), 5.0, dtype=torch.float64)
    was, reduction.BUCKET = reduction.BUCKET, bucket
    try:
        under_way = reduction.Reduction(list(model.parameters()), world, (0, 1), "the sum of a test")
        count = len(under_way.buckets)
        under_way.finish()
    finally:
        reduction.BUCKET = was
    return count, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize(("bucket", "messages"), [(2**20, 1), (50, 2), (8, 3)])
def test_gradients_are_summed_in_buckets_and_unused_parameters_have_none(bucket: int, messages: int) -> None:
    for count, found in on_processes(2, summed, bucket):
        assert count == messages
        assert found["none"] is None
        for name, value in (("all", 3.0), ("odd", 5.0)):
            grad = found[name]
            assert grad is not None and torch.equal(grad, torch.full((3,), value, dtype=torch.float64))
