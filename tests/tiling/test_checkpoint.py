"""Activation checkpointing and autocast on tiles: a recomputation exchanges what the forward did, in its order."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halocline import tiling
from halocline.tiling import window
from harness.ranks import assert_close, assert_exact, image, on_processes, on_threads


class Block(nn.Module):
    def __init__(self, given: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(given, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1), nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(given, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)
        out = self.norm2(self.conv2(out))
        out += self.skip(x)
        return F.relu(out, inplace=True)


class Network(nn.Module):
    def __init__(self, checkpointed: tuple[bool, ...], autocast: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(3, 4), Block(4, 6, 2), Block(6, 6)])
        # A recomputation would update running statistics twice, tiled or not.
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
        self.checkpointed, self.autocast = checkpointed, autocast

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            for block, saved in zip(self.blocks, self.checkpointed):
                x = checkpoint(block, x, use_reentrant=False) if saved else block(x)
        return x


@pytest.mark.parametrize("checkpointed", [(True, True, True), (False, True, False), (True, False, True)])
@pytest.mark.parametrize("grid", [(1, 2), (2, 2)])
def test_checkpointed_blocks_are_exact(checkpointed: tuple[bool, ...], grid: tuple[int, int]) -> None:
    assert_exact(Network(checkpointed), (2, 3, 21, 18), grid=grid)


@pytest.mark.parametrize("small", [0, 1 << 15])
@pytest.mark.parametrize("policy", ["auto", "never", "always"])
def test_whatever_the_overlap(policy: tiling.Policy, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recomputation runs outside of the `with`, under another policy; it must still save the same tensors."""
    monkeypatch.setattr(window, "SMALL", small)

    class Under(Network):
        def forward(self, x: Tensor) -> Tensor:
            with tiling.overlap(policy):
                return super().forward(x)

    assert_exact(Under((True, True, True)), (1, 3, 24, 20), grid=(2, 2))


def train_on_processes(shape: tuple[int, ...]) -> list[Tensor]:
    """A step in real processes, where a wrong order of messages would hang or mix them up."""
    net = Network((True, True, True)).double()
    y = net(tiling.tile(image(shape), (1, 2)))
    tiling.backward(y.full().square().mean(), net)
    return [p.grad for p in net.parameters() if p.grad is not None]


def test_checkpointing_in_processes() -> None:
    shape = (1, 3, 20, 22)
    net = Network((False, False, False)).double()
    net(image(shape)).square().mean().backward()
    expected = [p.grad for p in net.parameters()]
    for gradients in on_processes(2, train_on_processes, shape):
        for actual, one_device in zip(gradients, expected, strict=True):
            assert_close(actual, one_device, 1e-12, "gradient")


def test_checkpointing_exchanges_the_forward_once_more() -> None:
    counts = {}
    for checkpointed in ((False,) * 3, (True,) * 3):
        nets = [Network(checkpointed).double() for _ in range(2)]

        def run(exchanger: tiling.Exchanger, nets: list[Network] = nets) -> tuple[int, int]:
            x = tiling.tile(image((1, 3, 16, 18)), (1, 2), exchanger).requires_grad_()
            traffic = tiling.traffic(exchanger)
            traffic.reset()
            y = nets[exchanger.rank](x)
            forward = traffic.exchanges
            y.owned.sum().backward()
            return forward, traffic.exchanges - forward

        results = on_threads(2, run)
        assert results[0] == results[1]
        counts[checkpointed[0]] = results[0]
    assert counts[False] == (6, 6)
    # Recomputation stops at the last tensor that the backward needs, which is past each block's last exchange.
    assert counts[True] == (6, 12)


@pytest.mark.usefixtures("without_mkldnn")
@pytest.mark.parametrize("checkpointed", [False, True])
def test_autocast(checkpointed: bool) -> None:
    """bfloat16 on tiles is no further from float32 than bfloat16 on one device is."""
    exact, plain = Network((False,) * 3), Network((False,) * 3, autocast=True)
    x = image((2, 3, 20, 18), dtype=torch.float32)
    loss = exact(x).square().mean()
    loss.backward()
    y = plain(x)
    assert y.dtype is torch.bfloat16
    y.float().square().mean().backward()
    nets = [copy.deepcopy(Network((checkpointed,) * 3, autocast=True)) for _ in range(4)]

    def error(p: Tensor | None, q: Tensor | None) -> float:
        assert p is not None and q is not None
        return float((p - q).norm() / q.norm().clamp_min(1e-6))

    def run(exchanger: tiling.Exchanger) -> None:
        net = nets[exchanger.rank]
        out = net(tiling.tile(x, (2, 2), exchanger))
        assert out.dtype is torch.bfloat16
        tiling.backward(out.full().float().square().mean(), net, exchanger)
        ours = [error(a.grad, b.grad) for a, b in zip(net.parameters(), exact.parameters())]
        theirs = [error(a.grad, b.grad) for a, b in zip(plain.parameters(), exact.parameters())]
        # Gradients of biases before a norm are zero but for rounding: compare the rest, all together.
        assert sorted(ours)[len(ours) // 2] <= 1.5 * sorted(theirs)[len(theirs) // 2] + 1e-3

    on_threads(4, run)
