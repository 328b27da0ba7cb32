"""Norms that torch misreads are told by name; written out they are torch's, and right where torch is not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import permutations, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halocline.runtime.proof.norms import MisreadNorms, WrittenNorms


def laid(shape: tuple[int, ...], order: tuple[int, ...], seed: int) -> Tensor:
    """An image whose dims lie in memory in this order."""
    values = torch.randn([shape[d] for d in order], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.permute([order.index(d) for d in range(len(shape))])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("function", [F.batch_norm, F.instance_norm])
@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 4, 1), (2, 3, 4, 5), (1, 3, 6)])
def test_a_norm_is_misread_where_its_gradient_is_wrong(shape: tuple[int, ...], function: Any, training: bool) -> None:
    """Inputs and gradients in all orders: the kernel is suspected where norms written out differ, and nowhere else."""
    orders = list(permutations(range(len(shape))))
    given = torch.tensor([0.3, -0.2, 0.1]).double(), torch.tensor([2.0, 1.0, 0.5]).double()
    wrong = 0
    for order, grad_order in product(orders[::5] + orders[-1:], orders):
        x, grad = laid(shape, order, 0), laid(shape, grad_order, 1)
        gradients = []
        for mode in (watched := MisreadNorms([]), WrittenNorms()):
            leaf = x.detach().requires_grad_()
            with mode:
                function(leaf, *(t.clone() for t in given), None, None, training).backward(grad)
            gradients.append(leaf.grad)
        differs = not torch.allclose(*gradients, rtol=1e-8, atol=1e-8)
        assert bool(watched.names) == differs, (order, grad_order)
        wrong += differs
    ambiguous = shape[0] == 1 or shape[-1] == 1 or function is F.instance_norm
    assert (wrong > 0) == (ambiguous and len(shape) == 4)


class Sequence(nn.Module):
    """A norm, and the pixels as a sequence whose second dim are the samples, as nn.MultiheadAttention has them."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.norm, self.after, self.recompute = nn.BatchNorm2d(3), nn.LayerNorm(3), recompute

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.norm, x, use_reentrant=False) if self.recompute else self.norm(x)
        return self.after(y.permute(2, 3, 0, 1)).permute(2, 3, 0, 1)


@pytest.mark.parametrize("recompute", [False, True])
def test_modules_are_named_in_the_order_of_the_model(recompute: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Sequence(recompute), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Sequential(Sequence()))
    with MisreadNorms(net.named_children()) as watched:
        net(torch.randn(2, 3, 4, 5)).square().sum().backward()
    assert watched.names == []
    drawn = torch.get_rng_state()
    with MisreadNorms(net.named_children()) as watched:
        net(torch.ones(1, 3, 4, 5)).square().sum().backward()
    assert watched.names == ["0.norm", "3.0.norm"]
    assert torch.equal(torch.get_rng_state(), drawn), "nothing that a model would have drawn is"
    watched.names = []
    net(torch.randn(1, 3, 4, 5)).sum().backward()
    assert watched.names == [], "it is over"


def test_a_norm_of_the_loss() -> None:
    x = torch.randn(1, 3, 4, 5, requires_grad=True)
    with MisreadNorms([]) as watched:
        F.layer_norm(F.batch_norm(x, None, None, training=True).permute(2, 3, 0, 1), (3,)).square().sum().backward()
    assert watched.names == ["of the loss"]


def test_a_forward_that_fails_leaves_no_name_behind() -> None:
    net = nn.Sequential(Sequence())
    with MisreadNorms(net.named_children()) as watched:
        with pytest.raises(ValueError):
            net[0](torch.randn(3))
        assert watched._inside == ["of the loss"]


def test_a_gradient_that_is_one_number_repeated() -> None:
    x = torch.randn(1, 3, 4, 5, requires_grad=True)
    with MisreadNorms([]) as watched:
        F.instance_norm(F.batch_norm(x, None, None, training=True)).sum().backward()
    assert watched.names == []


def image(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(6),
    "batch, cumulative": lambda: nn.BatchNorm2d(6, momentum=None),
    "batch, bare": lambda: nn.BatchNorm2d(6, affine=False, track_running_stats=False),
    "batch, over processes": lambda: nn.SyncBatchNorm(6),
    "instance": lambda: nn.InstanceNorm2d(6),
    "instance, tracked": lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
    "instance, cumulative": lambda: nn.InstanceNorm2d(6, momentum=None, track_running_stats=True),
}


def results(norm: nn.Module, x: Tensor, grad: Tensor) -> list[Tensor]:
    """Two steps, so that running statistics have a history: output, gradients, buffers."""
    norm = norm.double()
    torch.manual_seed(1)
    for p in norm.parameters():
        nn.init.normal_(p)
    x = x.clone().requires_grad_()
    out = norm(x) * norm(3 * x * x + 1)
    out.backward(grad)
    return [out.detach(), *(p.grad for p in (x, *norm.parameters()) if p.grad is not None), *norm.buffers()]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_they_are_torchs(name: str, training: bool, memory_format: torch.memory_format) -> None:
    x = image(2, 6, 7, 5).contiguous(memory_format=memory_format)
    expected = results(NORMS[name]().train(training), x, image(2, 6, 7, 5))
    with WrittenNorms():
        found = results(NORMS[name]().train(training), x, image(2, 6, 7, 5))
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert found[0].stride() == expected[0].stride()


CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "batch, torch's own": lambda x, w, v: torch.batch_norm(x, w, w, v, v, False, 0.1, 1e-5, False),
    "instance, torch's own": lambda x, w, v: torch.instance_norm(x, w, w, None, None, True, 0.1, 1e-5, False),
    "batch, by keyword": lambda x, w, v: F.batch_norm(
        input=x, running_mean=v.clone(), running_var=v.clone(), weight=v, training=True, momentum=0.3, eps=1e-3
    ),
    "batch, torch's own by keyword": lambda x, w, v: torch.batch_norm(
        input=x,
        weight=w,
        bias=None,
        running_mean=None,
        running_var=None,
        training=True,
        momentum=0.1,
        eps=1e-5,
        cudnn_enabled=False,
    ),
    "instance, by keyword": lambda x, w, v: F.instance_norm(input=x, weight=w, eps=1e-3),
    "instance, torch's own by keyword": lambda x, w, v: torch.instance_norm(
        input=x,
        weight=w,
        bias=w,
        running_mean=v,
        running_var=v,
        use_input_stats=False,
        momentum=0.1,
        eps=1e-5,
        cudnn_enabled=False,
    ),
    "a sequence": lambda x, w, v: F.batch_norm(x.flatten(2), v, v),
    "points": lambda x, w, v: F.batch_norm(x.flatten(2).mean(2), v, v, w),
    "a volume": lambda x, w, v: F.batch_norm(x.unsqueeze(2), None, None, w, None, True),
    "one sample": lambda x, w, v: F.instance_norm(x[:1]),
    "no samples": lambda x, w, v: F.batch_norm(x[:0], v, v, w),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_way_to_call_them(name: str) -> None:
    def ran(within: AbstractContextManager[Any]) -> list[Tensor]:
        x, w = image(2, 6, 7, 5).requires_grad_(), image(6).requires_grad_()
        with within:
            out = CALLS[name](x, w, image(6).detach().abs())
        return [out.detach(), *torch.autograd.grad(out.tanh().sum(), (x, w), allow_unused=True, materialize_grads=True)]

    for found, expected in zip(ran(WrittenNorms()), ran(nullcontext())):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision(dtype: torch.dtype, autocast: bool) -> None:
    def ran(within: AbstractContextManager[Any]) -> Tensor:
        with within, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return nn.BatchNorm2d(6)(image(2, 6, 7, 5).to(dtype))

    found, expected = ran(WrittenNorms()), ran(nullcontext())
    assert found.dtype == expected.dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[found.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_what_torch_refuses_is_refused() -> None:
    with WrittenNorms(), pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm2d(6).double()(image(1, 6, 1, 1))


def by_hand(x: Tensor, grad: Tensor, dims: list[int]) -> Tensor:
    """The gradient of (x - mean) / sqrt(variance + eps)."""
    scale = torch.rsqrt(x.var(dims, correction=0, keepdim=True) + 1e-5)
    normal = (x - x.mean(dims, keepdim=True)) * scale
    means = grad.mean(dims, keepdim=True), (grad * normal).mean(dims, keepdim=True)
    return scale * (grad - means[0] - normal * means[1])


def permuted(*shape: int) -> tuple[Tensor, Tensor]:
    """An image, and a gradient in the order (pixels, batch, channels)."""
    return image(*shape), image(*shape[2:], *shape[:2]).permute(2, 3, 0, 1)


SHAPES = [(1, 3, 4, 5), (2, 3, 1, 5), (2, 3, 4, 1), (1, 3, 1, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_permuted_gradients_that_torch_misreads(norm: str, shape: tuple[int, ...]) -> None:
    x, grad = permuted(*shape)
    function, dims = (F.batch_norm, [0, 2, 3]) if norm == "batch" else (F.instance_norm, [2, 3])
    x.requires_grad_()
    with WrittenNorms():
        out = function(x, None, None, None, None, True)
    out.backward(grad)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, by_hand(x.detach(), grad, dims), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_norms_with_kernels_of_their_own_need_no_writing_out(shape: tuple[int, ...]) -> None:
    x, grad = permuted(*shape)
    for function, dims in (
        (lambda x: F.group_norm(x, 1), [1, 2, 3]),
        (lambda x: F.layer_norm(x, x.shape[2:]), [2, 3]),
        (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2), [1]),
    ):
        leaf = x.clone().requires_grad_()
        function(leaf).backward(grad)
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, by_hand(x, grad, dims), rtol=1e-12, atol=1e-12)
