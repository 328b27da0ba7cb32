"""Norms written out are torch's norms, and right where torch's kernels misread strides."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.runtime.written_norms import written_norms


def image(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(6),
    "batch, cumulative": lambda: nn.BatchNorm2d(6, momentum=None),
    "batch, bare": lambda: nn.BatchNorm2d(6, affine=False, track_running_stats=False),
    "instance": lambda: nn.InstanceNorm2d(6),
    "instance, tracked": lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
    "group": lambda: nn.GroupNorm(2, 6),
    "one group": lambda: nn.GroupNorm(1, 6, affine=False),
    "layer": lambda: nn.LayerNorm((7, 5)),
    "layer, bare": lambda: nn.LayerNorm((6, 7, 5), elementwise_affine=False),
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
    with written_norms():
        found = results(NORMS[name]().train(training), x, image(2, 6, 7, 5))
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert found[0].stride() == expected[0].stride()


def test_functions_of_torch_itself() -> None:
    x, w, b = image(2, 6, 7, 5), image(6), image(6) * 2
    mean, variance = image(6) + 1, image(6).abs()
    for call in (
        lambda: torch.batch_norm(x, w, b, mean, variance, False, 0.1, 1e-5, False),
        lambda: torch.instance_norm(x, w, b, None, None, True, 0.1, 1e-5, False),
        lambda: torch.group_norm(x, 3, w, b, 1e-5, False),
        lambda: torch.layer_norm(x, (5,), None, None, 1e-5, False),
        lambda: F.batch_norm(x.float(), mean.float(), variance.float()),
        lambda: F.batch_norm(x.bfloat16(), mean.float(), variance.float(), w.float(), b.float()),
    ):
        expected = call()
        with written_norms():
            found = call()
        assert found.dtype == expected.dtype
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[found.dtype]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def by_hand(x: Tensor, grad: Tensor, dims: list[int]) -> Tensor:
    """The gradient of (x - mean) / sqrt(variance + eps)."""
    scale = torch.rsqrt(x.var(dims, correction=0, keepdim=True) + 1e-5)
    normal = (x - x.mean(dims, keepdim=True)) * scale
    means = grad.mean(dims, keepdim=True), (grad * normal).mean(dims, keepdim=True)
    return scale * (grad - means[0] - normal * means[1])


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 1, 5), (2, 3, 4, 1), (1, 3, 1, 5)])
@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_permuted_gradients_that_torch_misreads(norm: str, shape: tuple[int, ...]) -> None:
    x, grad = image(*shape), image(*shape[2:], *shape[:2]).permute(2, 3, 0, 1)
    function, dims = (F.batch_norm, [0, 2, 3]) if norm == "batch" else (F.instance_norm, [2, 3])
    x.requires_grad_()
    with written_norms():
        out = function(x, None, None, None, None, True)
    out.backward(grad)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, by_hand(x.detach(), grad, dims), rtol=1e-12, atol=1e-12)
