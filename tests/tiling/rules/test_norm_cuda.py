"""Norms on a GPU, where batch norm has kernels of its own, equal one device's; skipped where there is no GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from halocline import tiling
from halocline.tiling.boxes import slices
from halocline.tiling.exchanger import exchanger_for
from halocline.tiling.route import index
from harness.ranks import assert_close, image, on_processes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make(kind: str) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(2, 6)
    if kind == "instance":
        return nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
    if kind == "instance without parameters":
        return nn.InstanceNorm2d(6)
    bare = kind == "batch without parameters"
    return nn.BatchNorm2d(6, affine=not bare, track_running_stats=not bare)


def norm_on_a_gpu(kind: str, dtype: torch.dtype, channels_last: bool, margin: int, pool: int, tolerance: float) -> None:
    torch.manual_seed(0)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    reference, norm = make(kind), make(kind)
    for p in reference.parameters():
        nn.init.normal_(p)
    norm.load_state_dict(reference.state_dict())
    reference.double()
    norm.to("cuda", torch.float64 if dtype is torch.float64 else torch.float32)
    x = image((2, 6, 8, 8), dtype=dtype).cuda().contiguous(memory_format=memory_format).requires_grad_()
    y = x.detach().double().cpu().requires_grad_()
    expected = reference(F.max_pool2d(y, pool))
    weight = image(expected.shape, 3)
    (expected * weight).sum().backward()
    t = tiling.tile(x, (1, 2))
    t = t.fetched(t.spec.grown(margin).have)
    pooled = norm(F.max_pool2d(t, pool))
    if channels_last and kind.startswith("batch") and pooled.local.numel():  # the others give contiguous results
        assert pooled.local.is_contiguous(memory_format=torch.channels_last)
    out = pooled.full()
    assert_close(out.double().cpu(), expected, tolerance, "output")
    tiling.backward((out.double() * weight.cuda()).sum(), norm)
    assert x.grad is not None
    assert_close(x.grad.double().cpu(), y.grad, tolerance, "gradient")
    for p, q in zip(norm.parameters(), reference.parameters()):
        assert p.grad is not None
        assert_close(p.grad.double().cpu(), q.grad, tolerance, "gradient of a parameter")
    for (name, a), b in zip(norm.named_buffers(), reference.buffers()):
        assert_close(a.double().cpu(), b.double(), tolerance, name)


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "kind", ["batch", "batch without parameters", "group", "instance", "instance without parameters"]
)
def test_norms(kind: str, dtype: torch.dtype, channels_last: bool, margin: int) -> None:
    tolerance = 1e-12 if dtype is torch.float64 else 3e-2
    on_processes(2, norm_on_a_gpu, kind, dtype, channels_last, margin, 1, tolerance)


def test_a_rank_without_pixels() -> None:
    """Pooled to one pixel per sample, which one of the two ranks owns."""
    on_processes(2, norm_on_a_gpu, "batch", torch.float64, True, 0, 8, 1e-12)


def lanes_on_a_gpu(cuts: tuple[tuple[int, ...], ...], dims: tuple[int, ...]) -> None:
    """Dims that are not cut count in full on every rank: a batch cut over ranks, or an image cut in rows only."""
    torch.manual_seed(0)
    reference, norm = nn.BatchNorm2d(6).double(), nn.BatchNorm2d(6).double().cuda()
    x = image((4, 6, 8, 8)).requires_grad_()
    expected = reference(x)
    weight = image(expected.shape, 3)
    (expected * weight).sum().backward()
    spec = tiling.TileSpec(cuts, exchanger_for(None), dims)
    leaf = x.detach().cuda()[index(slices(spec.box, tuple((0, n) for n in spec.size)), dims)].clone().requires_grad_()
    out = norm(tiling.TileTensor.wrap(leaf, spec)).full()
    assert_close(out.cpu(), expected, 1e-12, "output")
    tiling.backward((out * weight.cuda()).sum(), norm)
    part = x.grad[index(slices(spec.box, tuple((0, n) for n in spec.size)), dims)]  # type: ignore[index]
    assert_close(leaf.grad.cpu(), part, 1e-12, "gradient")  # type: ignore[union-attr]
    assert norm.running_var is not None and reference.running_var is not None
    assert_close(norm.running_var.cpu(), reference.running_var, 1e-12, "running variance")


@pytest.mark.parametrize(
    ("cuts", "dims"), [(((0, 1, 4),), (-4,)), (((0, 3, 8),), (-2,)), (((0, 2, 4), (0, 8)), (-4, -1))]
)
def test_dims_that_are_not_cut(cuts: tuple[tuple[int, ...], ...], dims: tuple[int, ...]) -> None:
    on_processes(2, lanes_on_a_gpu, cuts, dims)
