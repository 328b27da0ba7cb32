"""Dropout on tiles drops what one device drops, from the same seed.

The ranks run one after the other here, each from that seed: threads would share one generator. It needs no message.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import NoCommunication
from harness.ranks import assert_close, image, on_processes

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "in place": lambda x: F.dropout(x.clone(), 0.4, inplace=True),
    "torch": lambda x: torch.dropout(x, 0.4, True),
    "all": lambda x: F.dropout(x, 1.0),
    "none": lambda x: F.dropout(x, 0.0),
    "in evaluation": lambda x: F.dropout(x, 0.4, training=False),
    "channels": lambda x: F.dropout2d(x, 0.4),
    "channels in place": lambda x: F.dropout2d(x.clone(), 0.4, inplace=True),
    "feature": lambda x: torch.feature_dropout(x, 0.4, True),
    "alpha": lambda x: F.alpha_dropout(x, 0.4, True),
    "alpha in place": lambda x: F.alpha_dropout(x.clone(), 0.4, True, True),
    "alpha all": lambda x: F.alpha_dropout(x, 1.0, True),
    "alpha none": lambda x: F.alpha_dropout(x, 0.0, True),
    "alpha in evaluation": lambda x: F.alpha_dropout(x, 0.4),
    "alpha channels": lambda x: F.feature_alpha_dropout(x, 0.4, True),
    "twice": lambda x: F.dropout(F.dropout2d(F.relu(F.dropout(x, 0.2)), 0.3), 0.4),
    "permuted": lambda x: F.dropout(x.permute(0, 2, 3, 1), 0.4).permute(0, 3, 1, 2),
}


def same_as_one_device(function: Callable[[Tensor], Tensor], x: Tensor, cuts: list[list[int]], margin: int = 0) -> None:
    x = x.detach().requires_grad_()
    torch.manual_seed(5)
    expected = function(x)
    following = torch.rand(1)
    (expected * image(expected.shape, 2)).sum().backward()
    size = 1
    for c in cuts:
        size *= len(c) - 1
    for rank in range(size):
        whole = tiling.tile(x.detach(), cuts=cuts, group=NoCommunication(rank, size))
        spec = whole.spec.grown(margin)
        box = (..., *[slice(*i) for i in spec.held])
        part = x.detach()[box]
        local = part if 0 in x.stride() else part.clone(memory_format=torch.preserve_format)  # a copy repeats nothing
        local.requires_grad_()
        torch.manual_seed(5)
        out = function(tiling.TileTensor.wrap(local, spec))
        assert torch.equal(torch.rand(1), following), f"rank {rank} is out of step"
        assert_close(out.local, expected[box], 1e-12, f"rank {rank}")
        (out.local * image(expected.shape, 2)[box]).sum().backward()
        assert x.grad is not None
        assert_close(local.grad, x.grad[box], 1e-12, f"gradient of rank {rank}")


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_image(name: str, margin: int, memory_format: torch.memory_format) -> None:
    x = image((2, 5, 7, 9)).contiguous(memory_format=memory_format)
    same_as_one_device(FUNCTIONS[name], x, [[0, 2, 7], [0, 1, 9]], margin)


def strided() -> dict[str, Tensor]:
    """Images that lie in memory as strangers' do, some of them with tiles of one pixel."""
    x, small = image((2, 5, 7, 9)), image((1, 4, 2, 3))
    last = torch.channels_last
    return {
        "permuted": image((7, 2, 9, 5)).permute(1, 3, 0, 2),
        "repeated": image((2, 1, 7, 9)).expand(2, 5, 7, 9),
        "repeated samples": image((1, 5, 7, 9)).contiguous(memory_format=last).expand(2, 5, 7, 9),
        "part of channels": image((2, 8, 7, 9)).contiguous(memory_format=last)[:, 2:7],
        "every second pixel": image((2, 5, 14, 9)).contiguous(memory_format=last)[:, :, ::2],
        "one channel": image((2, 1, 7, 9)).contiguous(memory_format=last),
        "small": small,
        "small, channels last": small.contiguous(memory_format=last),
        "turned": x.transpose(2, 3).contiguous().transpose(2, 3),
    }


@pytest.mark.parametrize("name", strided())
@pytest.mark.parametrize("function", ["dropout", "channels", "alpha", "permuted"])
def test_any_order_in_memory(name: str, function: str) -> None:
    x = strided()[name]
    height, width = x.shape[2:]
    for cuts in ([[0, 1, height], [0, 1, width]], [[0, height - 1, height], [0, width // 2, width]]):
        same_as_one_device(FUNCTIONS[function], x, cuts)


@pytest.mark.parametrize("module", [nn.Dropout(0.3), nn.Dropout1d(0.3), nn.AlphaDropout(0.3)])
def test_line(module: nn.Module) -> None:
    same_as_one_device(module, image((3, 4, 11)), [[0, 2, 11]])
    same_as_one_device(module, image((4, 11)), [[0, 2, 11]])


def test_volume() -> None:
    same_as_one_device(nn.Dropout3d(0.3), image((3, 4, 4, 5, 6)), [[0, 2, 4], [0, 5], [0, 5, 6]])
    same_as_one_device(nn.Dropout3d(0.3), image((4, 4, 5, 6)), [[0, 2, 4], [0, 5], [0, 5, 6]])


def test_no_whole_mask_is_kept() -> None:
    x = tiling.tile(torch.ones(1, 1, 64, 64), (1, 4), NoCommunication(0, 4)).requires_grad_()
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.untyped_storage().nbytes()) or t, lambda t: t
    ):
        F.dropout(x)
    assert saved and max(saved) <= 64 * 16 * 4


def network_on_a_process() -> None:
    """Dropout between layers that exchange, on processes with generators of their own."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Dropout2d(0.3), nn.Dropout(0.3), nn.Conv2d(4, 2, 3)).double()
    x = image((2, 3, 9, 9))
    torch.manual_seed(7)
    expected = net(x)
    expected.pow(2).sum().backward()
    wanted = [p.grad for p in net.parameters()]
    net.zero_grad()
    torch.manual_seed(7)
    out = net(tiling.tile(x, (1, 2))).full()
    assert_close(out, expected, 1e-12, "output")
    tiling.backward(out.pow(2).sum(), net)
    for p, grad in zip(net.parameters(), wanted):
        assert_close(p.grad, grad, 1e-12, "gradient")


def test_a_network_on_processes() -> None:
    on_processes(2, network_on_a_process)


def test_a_wrong_probability_is_refused() -> None:
    x = tiling.tile(torch.zeros(1, 2, 4, 4), (1, 2), NoCommunication(0, 2))
    with pytest.raises(ValueError, match=r"between 0 and 1, but got 1\.5"):
        F.dropout(x, 1.5)
