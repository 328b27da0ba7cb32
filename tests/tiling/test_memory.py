"""What a tile keeps for the backward: one device's share of the activations, each of them once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from halocline import tiling
from harness.ranks import on_threads


def layers(kind: str, count: int = 6, channels: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for _ in range(count):
        made.append(nn.Conv2d(channels, channels, 3, padding=1, bias=False))
        if "norm" in kind:
            made.append(nn.BatchNorm2d(channels))
        made.append(nn.ReLU(inplace="in place" in kind))
    return nn.Sequential(*made)


def saved_bytes(net: nn.Module, run: Callable[[], Tensor]) -> int:
    """The bytes of the distinct storages that autograd keeps, but for the parameters."""
    known = {p.untyped_storage().data_ptr() for p in net.parameters()}
    storages: dict[int, int] = {}
    kept = []  # alive, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept.append(run())
    return sum(storages.values())


KINDS = ["conv, relu", "conv, relu in place", "conv, norm, relu", "conv, norm, relu in place"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["never", "always"])
def test_a_tile_saves_one_devices_share(kind: str, policy: tiling.Policy) -> None:
    image = torch.randn(1, 16, 256, 256)
    net = layers(kind)
    one_device = saved_bytes(net, lambda: net(image.clone()))

    def on_tile(exchanger: tiling.Exchanger) -> int:
        mine = layers(kind)
        x = tiling.tile(image, (2, 2), exchanger)
        with tiling.overlap(policy):
            return saved_bytes(mine, lambda: mine(x))

    for rank, saved in enumerate(on_threads(4, on_tile)):
        assert saved <= 1.05 * one_device / 4, f"rank {rank} saves {saved / (one_device / 4):.3f} of its share"


def test_a_tile_is_not_padded_for_good() -> None:
    """A convolution keeps its input as its producer made it, not a padded copy (but for small tiles)."""
    conv = nn.Conv2d(4, 4, 3, padding=1)

    def on_tile(exchanger: tiling.Exchanger) -> None:
        x = tiling.tile(torch.randn(1, 4, 256, 256), (2, 1), exchanger).requires_grad_()
        seen: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            seen.append(tensor.untyped_storage().data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            conv(x)
        assert x.local.untyped_storage().data_ptr() in seen

    on_threads(2, on_tile)


@pytest.mark.parametrize("policy", ["never", "always"])
def test_channels_last_is_kept_forward_and_backward(policy: tiling.Policy) -> None:
    last = torch.channels_last

    def on_tile(exchanger: tiling.Exchanger) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(
            *(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
            *(nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 1)),
        ).to(memory_format=last)
        piece = tiling.tile(torch.randn(2, 4, 32, 32).to(memory_format=last), (2, 2), exchanger)
        x = piece.requires_grad_()
        with tiling.overlap(policy):
            for layer in net:
                x = layer(x)
                assert x.local.is_contiguous(memory_format=last) and not x.local.is_contiguous(), type(layer)
        x.local.square().sum().backward()
        assert piece.grad is not None
        assert piece.grad.local.is_contiguous(memory_format=last) and not piece.grad.local.is_contiguous()

    on_threads(4, on_tile)
