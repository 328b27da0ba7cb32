"""Norms of tensors that lie in memory in any order: torch's kernels misread some of them, the rules must not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from halocline import tiling
from halocline.runtime.proof.norms import WrittenNorms
from halocline.tiling.exchanger import Alone, NoCommunication
from halocline.tiling.plain import for_tiles
from harness.ranks import assert_close, assert_exact, image, on_threads

FAMILIES: list[Callable[[int], nn.Module]] = [
    nn.BatchNorm2d,
    lambda c: nn.BatchNorm2d(c).eval(),
    lambda c: nn.GroupNorm(1, c),
    lambda c: nn.GroupNorm(c, c),
    lambda c: nn.InstanceNorm2d(c, affine=True),
    lambda c: nn.InstanceNorm2d(c, track_running_stats=True),
    lambda c: nn.InstanceNorm2d(c, track_running_stats=True).eval(),
]


@st.composite
def strided(draw: st.DrawFn, shape: tuple[int, ...]) -> Tensor:
    """A tensor of this shape that lies in memory in any order, perhaps as a part of another, repeated or oddly strided
    where it is of size 1."""
    order = draw(st.permutations(range(len(shape))))
    kind = draw(st.sampled_from(["dense", "dense", "part", "repeated", "odd"]))
    sizes = [shape[d] + (kind == "part") for d in order]
    back = sorted(range(len(shape)), key=order.__getitem__)
    x = image(sizes, draw(st.integers(0, 3))).permute(back)
    x = x[tuple(slice(n) for n in shape)]
    if kind == "repeated":
        dim = draw(st.integers(0, len(shape) - 1))
        x = x.narrow(dim, 0, 1).expand(shape)
    if kind == "odd":
        odd = draw(st.sampled_from([0, 1, 3, 100]))
        x = x.as_strided(shape, [odd if n == 1 else s for n, s in zip(shape, x.stride())])
    return x


def by_hand(norm: nn.Module, x: Tensor, grad: Tensor) -> list[Tensor | None]:
    """What a norm is, in torch's elementary operations: output, and gradients of the input and the parameters."""
    x = x.clone(memory_format=torch.contiguous_format).requires_grad_()
    if isinstance(norm, nn.GroupNorm):
        groups, dims = norm.num_groups, [2, 3, 4]
    else:
        groups, dims = x.shape[1], [0, 2, 3, 4] if isinstance(norm, nn.BatchNorm2d) else [2, 3, 4]
    grouped = x.unflatten(1, (groups, -1))
    if norm.training or isinstance(norm, nn.GroupNorm):
        mean, variance = grouped.mean(dims, keepdim=True), grouped.var(dims, correction=0, keepdim=True)
    else:
        mean, variance = (b.view(1, -1, 1, 1, 1) for b in (norm.running_mean, norm.running_var))
    out = ((grouped - mean) / torch.sqrt(variance + norm.eps)).flatten(1, 2)
    if norm.weight is not None:
        out = out * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)
    leaves = [x, *norm.parameters()]
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.clone(memory_format=torch.contiguous_format))]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_strides_that_torch_misreads(data: st.DataObject) -> None:
    """Any strides of the pixels and of their gradient: torch's kernels take some for others (a batch of one sample, a
    tile one pixel wide, statistics that are a repeated number)."""
    shape = data.draw(st.sampled_from([(1, 4, 4, 8), (2, 4, 4, 8), (1, 4, 2, 2), (2, 1, 4, 4), (1, 4, 1, 6)]))
    norm = data.draw(st.sampled_from(FAMILIES))(shape[1]).double()
    for p in (*norm.parameters(), *norm.buffers()):
        if p.is_floating_point():
            nn.init.uniform_(p, 0.5, 2.0)
    x, grad = data.draw(strided(shape)), data.draw(strided(shape))
    cut = data.draw(st.sampled_from([None, 1, shape[-1] // 2]))
    expected = by_hand(norm, x, grad)

    def run(exchanger: tiling.Exchanger) -> None:
        spec = tiling.tile(x, cuts=cuts, group=exchanger).spec
        box = (..., *[slice(a, b) for a, b in spec.box])
        local = x[box].detach().requires_grad_()
        mine = copy.deepcopy(norm)
        out = mine(tiling.TileTensor.wrap(local, spec))
        out.local.backward(grad[box])
        assert expected[0] is not None and expected[1] is not None
        tolerance = 1e-12 if x.std() else 1e-6
        assert_close(out.local, expected[0][box], tolerance, "output")
        assert_close(local.grad, expected[1][box], 1e-9, "gradient")
        for p, wanted in zip(mine.parameters(), expected[2:]):
            assert p.grad is not None
            assert_close(p.grad, wanted, 1e-10, "gradient of a parameter")

    cuts = [[0, shape[2]], [0, shape[3]] if cut is None else [0, cut, shape[3]]]
    if cut is None:
        run(Alone())
    else:
        on_threads(2, run)


class Mixed(nn.Module):
    """Layers between norms as strangers' models have them."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.parts = nn.ModuleList(p for p in parts if isinstance(p, nn.Module))
        self.steps = parts

    def forward(self, x: Tensor) -> Tensor:
        modules = iter(self.parts)
        for step in self.steps:
            x = next(modules)(x) if isinstance(step, nn.Module) else step(x)
        return x


def conv(*args: Any) -> nn.Module:
    return nn.Conv2d(*args, padding=1)


def by_channels(x: Tensor) -> Tensor:
    """Channels mixed by an einsum, whose gradient arrives permuted."""
    return torch.einsum("bchw,oc->bohw", x, image((5, x.shape[1]), 7))


def as_tokens(x: Tensor) -> Tensor:
    """There and back again, as attention over pixels does: gradients arrive permuted."""
    tokens = x.flatten(2).transpose(1, 2)
    mixed = tokens @ image((x.shape[1], x.shape[1]), 7)
    return mixed.transpose(1, 2).reshape(x.shape)


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("steps", "cuts"),
    [
        ((nn.GroupNorm(1, 4),), [[0, 1, 4], [0, 1, 8]]),
        ((channels_last, conv(4, 8, 3), nn.GroupNorm(1, 8), conv(8, 4, 3)), [[0, 2, 4], [0, 4, 8]]),
        ((conv(4, 8, 3), nn.GroupNorm(2, 8), as_tokens, conv(8, 4, 3)), [[0, 2, 4], [0, 4, 8]]),
        ((conv(4, 8, 3), nn.InstanceNorm2d(8), as_tokens), [[0, 2, 4], [0, 4, 8]]),
        ((nn.BatchNorm2d(4), by_channels), [[0, 4], [0, 1, 8]]),
        ((nn.BatchNorm2d(4).eval(), by_channels), [[0, 4], [0, 1, 8]]),
        ((nn.BatchNorm2d(4), by_channels, nn.GroupNorm(1, 5), as_tokens), [[0, 1, 4], [0, 7, 8]]),
    ],
)
def test_models_whose_strides_torch_misread(steps: Any, cuts: list[list[int]], batch: int) -> None:
    model = Mixed(*steps)
    with WrittenNorms():  # one device is wrong in some of these
        assert_exact(model, (batch, 4, 4, 8), cuts=cuts)


@pytest.mark.parametrize("last", [nn.Conv2d(8, 1, 4, padding=1), nn.ConvTranspose2d(8, 1, 2, 2), nn.Conv2d(8, 1, 1)])
def test_a_kernel_of_one_channel_keeps_its_strides(last: nn.Module) -> None:
    """In channels_last, the stride of a dim of size 1 tells torch's convolution how its gradient lies."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), last).double().to(memory_format=torch.channels_last)
    assert_exact(model, (2, 3, 12, 10), cuts=[[0, 7, 12], [0, 4, 10]])
    kernel = torch.zeros(1, 8, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    assert for_tiles(kernel, NoCommunication(0, 2)).stride() == kernel.stride()
