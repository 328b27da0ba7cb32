"""On a GPU a part of dropout's numbers is drawn by place: torch's own, of every dtype, order in memory and size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halocline.tiling.rules  # noqa: F401  (a tile without rules could do nothing)
from halocline import tiling
from halocline.tiling import NoCommunication
from halocline.tiling.strides import strides_in

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytestmark = [pytest.mark.gpu, GPU]

DRAWS: dict[str, tuple[Callable[..., Tensor], float, tuple[Any, ...]]] = {
    "dropout": (F.dropout, 1.0, (0.3, True)),
    "in place": (torch.dropout_, 1.0, (0.3, True)),
    "alpha": (F.alpha_dropout, 0.0, (0.3, True)),
    "bernoulli": (Tensor.bernoulli_, 0.0, (0.3,)),
}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KNOWN = [(name, dtype) for name in DRAWS for dtype in DTYPES if name == "dropout" or dtype is not torch.float64]


@pytest.mark.parametrize(("name", "dtype"), KNOWN)
def test_torch_draws_as_we_know(name: str, dtype: torch.dtype) -> None:
    philox = pytest.importorskip("halocline.tiling.philox")
    (draw, value, args), device = DRAWS[name], torch.device("cuda", torch.cuda.current_device())
    philox._kept(draw, (999,), ((5, 99),), (0,), torch.ones(999, dtype=dtype, device=device), *args)  # or says why not
    before = torch.cuda.get_rng_state()
    assert philox._values(draw, value, dtype, device, args) is not None
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.parametrize(("name", "dtype"), KNOWN)
@pytest.mark.parametrize("seed", [0, 3, 2**63 + 5])
def test_any_part_in_any_order_of_memory(name: str, dtype: torch.dtype, seed: int) -> None:
    philox = pytest.importorskip("halocline.tiling.philox")
    draw, value, args = DRAWS[name]
    for size in ((2, 3, 64, 40), (2, 3, 37, 41), (1, 6, 37, 41), (1, 16, 512, 516), (1, 3, 1023, 2047)):
        high, wide = size[2:]
        for order in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 0, 2, 1)):
            torch.cuda.manual_seed(seed)
            torch.rand(3, device="cuda")
            before = torch.cuda.get_rng_state()
            whole = torch.empty_strided(size, strides_in(order, size), dtype=dtype, device="cuda").fill_(value)
            expected, following = draw(whole, *args), torch.cuda.get_rng_state()
            for rows, columns in (((0, high), (0, wide)), ((0, 11), (17, wide)), ((5, high), (3, 4)), ((2, 2), (0, 9))):
                torch.cuda.set_rng_state(before)
                part = (0, size[0]), (0, size[1]), rows, columns
                found = philox.part_by_place(draw, value, size, part, order, whole, *args)
                assert found is not None and found.dtype == dtype
                assert torch.equal(found, expected[:, :, slice(*rows), slice(*columns)]), (size, order, rows, columns)
                assert torch.equal(torch.cuda.get_rng_state(), following)


MODULES = {
    "dropout": nn.Dropout(0.3),
    "dropout in place": nn.Dropout(0.3, inplace=True),
    "alpha": nn.AlphaDropout(0.3),
    "alpha in place": nn.AlphaDropout(0.3, inplace=True),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODULES)
def test_a_tile_drops_what_one_device_drops(name: str, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    for shape in ((2, 8, 128, 130), (1, 3, 257, 513), (1, 16, 1024, 1024)):
        x = torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=memory_format).requires_grad_()
        torch.manual_seed(3)
        expected, following = MODULES[name](x.clone()), torch.rand(1, device="cuda")
        expected.sum().backward()
        assert x.grad is not None
        for rank in range(4):
            torch.manual_seed(3)
            spec = tiling.tile(x.detach(), (2, 2), NoCommunication(rank, 4)).spec
            (a, b), (c, d) = spec.box
            local = x.detach()[..., a:b, c:d].clone(memory_format=torch.preserve_format).requires_grad_()
            tile = tiling.TileTensor.wrap(local, spec)
            out = MODULES[name](tile.clone() if "in place" in name else tile)
            assert torch.equal(torch.rand(1, device="cuda"), following), f"rank {rank} is out of step"
            kept = expected[..., a:b, c:d]
            # One device rounds the product with 1 / (1 - p) once, a tile that factor, too.
            error = 2 * torch.finfo(dtype).eps
            torch.testing.assert_close(out.local, kept, rtol=error, atol=4 * error)
            out.local.sum().backward()
            torch.testing.assert_close(local.grad, x.grad[..., a:b, c:d], rtol=error, atol=0)
            if "alpha" not in name:
                assert torch.equal(out.local == 0, kept == 0)


@pytest.mark.parametrize("name", MODULES)
def test_no_rank_makes_the_mask_of_the_whole_image(name: str) -> None:
    """The memory of a step grows with the tile, not with the image: four tiles or sixty-four."""
    pytest.importorskip("triton")
    peaks = []
    for rows in (2, 32):
        spec = tiling.TileSpec((tuple(range(0, 512 * rows + 1, 512)), (0, 512, 1024)), NoCommunication(1, 2 * rows))
        for again in (False, True):  # the first asks torch how it draws
            x = tiling.TileTensor.wrap(torch.ones(1, 16, 512, 512, device="cuda"), spec)
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            MODULES[name](x)
            if again:
                peaks.append(torch.cuda.max_memory_allocated() - held)
    assert peaks[1] <= 1.1 * peaks[0] <= 1.1 * 5 * 16 * 512 * 512 * 4, peaks
