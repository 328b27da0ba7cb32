"""Windows on a GPU, where strips are packed by one kernel and max pooling keeps indices, equal one device's.

Skipped where there is no GPU.
"""

import copy

import pytest
import torch
from torch import nn

from halocline import tiling
from harness.ranks import assert_close, image, on_processes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1, 2)),
        *(nn.Conv2d(4, 5, 3, padding=2, dilation=2), nn.AvgPool2d(2)),
    )


def network_on_a_gpu(dtype: torch.dtype, channels_last: bool, policy: tiling.Policy, tolerance: float) -> None:
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    reference = layers().double()
    net = copy.deepcopy(reference).to("cuda", dtype, memory_format=memory_format)
    x = image((2, 3, 93, 90), dtype=dtype).cuda().contiguous(memory_format=memory_format).requires_grad_()
    y = x.detach().double().cpu().requires_grad_()
    expected = reference(y)
    weight = image(expected.shape, 3)
    (expected * weight).sum().backward()
    with tiling.overlap(policy):
        out = net(tiling.tile(x, (2, 2))).full()
    assert_close(out.double().cpu(), expected, tolerance, "output")
    tiling.backward((out.double() * weight.cuda()).sum(), net)
    assert x.grad is not None
    assert_close(x.grad.double().cpu(), y.grad, tolerance, "gradient")
    for (name, p), q in zip(net.named_parameters(), reference.parameters()):
        assert p.grad is not None
        if q.grad is not None and float(q.grad.abs().max()) > 1e-9:  # a bias before a norm has no gradient but noise
            assert_close(p.grad.double().cpu(), q.grad, tolerance, name)


@pytest.mark.parametrize("policy", ["never", "always", "auto"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_network(channels_last: bool, policy: tiling.Policy) -> None:
    on_processes(4, network_on_a_gpu, torch.float64, channels_last, policy, 1e-11)


def words_of_8_bytes(dtype: torch.dtype) -> None:
    """bfloat16 and float32 tiles are copied in larger words than theirs: a convolution of one device's bits."""
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 8, 3, padding=1, bias=False).to("cuda", dtype, memory_format=torch.channels_last)
    conv.weight.data.copy_(torch.randint(-2, 3, conv.weight.shape))  # small whole numbers: sums are exact in any order
    x = image((2, 8, 96, 96)).round().to("cuda", dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    expected = conv(x)
    expected.sum().backward()
    grad, x.grad = x.grad, None
    out = conv(tiling.tile(x, (2, 2))).full()
    assert torch.equal(out, expected)
    tiling.backward(out.sum(), conv)
    assert x.grad is not None and grad is not None
    assert torch.equal(x.grad, grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_words_of_8_bytes(dtype: torch.dtype) -> None:
    on_processes(4, words_of_8_bytes, dtype)
