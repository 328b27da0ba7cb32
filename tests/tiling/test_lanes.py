"""Lanes: every family of operators with the batch cut, alone and together with the image, equals one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.tiling import TileTensor, UntiledOperation
from halocline.tiling.exchanger import ThreadExchanger
from halocline.tiling.spec import TileSpec
from harness.operators import FUNCTIONAL
from harness.ranks import assert_close, assert_exact, image, on_threads

SHAPE = (5, 4, 9, 8)
LANES: dict[str, dict[str, Any]] = {
    "2 lanes": {"dims": (-4,), "grid": (2,)},
    "3 lanes": {"dims": (-4,), "grid": (3,)},
    "2 lanes of 1x2": {"dims": (-4, -2, -1), "grid": (2, 1, 2)},
    "2 lanes of 2x2 uneven": {"dims": (-4, -2, -1), "cuts": ((0, 2, 5), (0, 3, 9), (0, 5, 8))},
    "one without samples": {"dims": (-4, -2, -1), "cuts": ((0, 0, 5), (0, 4, 9), (0, 8))},
    "only rows": {"dims": (-2,), "grid": (3,)},
}


def _squeeze_excite(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


def _factorized_reduce(x: Tensor) -> Tensor:
    return torch.cat([x[:, :, ::2, ::2], F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:][:, :, ::2, ::2]], 1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "convolution": nn.Conv2d(4, 6, 3, padding=1),
    "strided": nn.Conv2d(4, 6, (3, 5), 2, (1, 2), groups=2),
    "padding same": nn.Conv2d(4, 4, (1, 3), padding="same"),
    "reflect": nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    "circular": nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
    "transposed": nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1),
    "max pooling": nn.MaxPool2d(3, 2, 1),
    "average pooling": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "LP pooling": nn.LPPool2d(2, 2),
    "adaptive average": nn.AdaptiveAvgPool2d((4, 3)),
    "adaptive max": nn.AdaptiveMaxPool2d((2, 3)),
    "global pooling and head": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    "mean": lambda x: x.mean((2, 3)),
    "sum of samples": lambda x: x.sum(0),
    "sum of all": lambda x: x.square().sum(),
    "largest": lambda x: x.amax((2, 3)),
    "variance": lambda x: x.var((0, 2, 3)),
    "batch norm": nn.BatchNorm2d(4, momentum=0.3),
    "batch norm of vectors": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(4)),
    "group norm": nn.GroupNorm(2, 4),
    "instance norm": nn.InstanceNorm2d(4, affine=True),
    "instance norm with running statistics": nn.InstanceNorm2d(4, track_running_stats=True),
    "layer norm of channels": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2),
    "layer norm of samples": nn.LayerNorm((4, 9, 8)),
    "local response norm": nn.LocalResponseNorm(3),
    "interpolation": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "interpolation to a size": lambda x: F.interpolate(x, size=(7, 11), mode="bicubic"),
    "nearest": lambda x: F.interpolate(x, size=(13, 5)),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel unshuffle": lambda x: F.pixel_unshuffle(F.pad(x, (0, 0, 0, 1)), 2),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=0.5),
    "pad and crop": lambda x: F.pad(x, (-1, 2, 2, -3), mode="replicate"),
    "squeeze and excite": _squeeze_excite,
    "factorized reduce": _factorized_reduce,
    "softmax": lambda x: x.softmax(1),
    "softmax of pixels": lambda x: x.flatten(2).softmax(-1),
    "flatten": lambda x: x.flatten(1) @ image((288, 3)),
    "view": lambda x: x.view(x.shape[0], 2, 2, 9, 8).transpose(1, 2).reshape(x.shape),
    "split": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "samples": lambda x: x[1:4],
    "one sample": lambda x: x[3],
    "join samples": lambda x: torch.cat([x, 2 * x], 0),
    "flip": lambda x: x.flip(0) + x.flip(3),
    "roll": lambda x: x.roll((1, 2), (0, 3)),
    "broadcast": lambda x: x * image((5, 1, 1, 1)) + image((4, 1, 1)) - image((1, 1, 9, 8)),
    "matrix": lambda x: torch.einsum("nchw,dc->ndhw", x, image((3, 4))),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.flatten(2).transpose(1, 2)] * 3),
    "log-likelihood": lambda x: F.cross_entropy(x.mean((2, 3)), torch.tensor([0, 3, 1, 2, 2])),
    "dense log-likelihood": lambda x: F.cross_entropy(x, torch.arange(360).view(5, 9, 8) % 4, ignore_index=2),
    "log-likelihood of each": lambda x: F.cross_entropy(x, torch.arange(360).view(5, 9, 8) % 4, reduction="none"),
    "soft labels": lambda x: F.cross_entropy(x, image(SHAPE).softmax(1), reduction="none"),
    "squared error": lambda x: F.mse_loss(x, image(SHAPE)),
}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_family(name: str, lanes: str) -> None:
    assert_exact(FUNCTIONS[name], SHAPE, **LANES[lanes])


@pytest.mark.parametrize("lanes", ["2 lanes", "2 lanes of 2x2 uneven"])
def test_margins(lanes: str) -> None:
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    assert_exact(net, SHAPE, margin=1, **LANES[lanes])


@pytest.mark.parametrize("lanes", [2, 3])
def test_transformer(lanes: int) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    assert_exact(layer, (5, 6, 8), dims=(-3,), grid=(lanes,), tiled=True)
    assert_exact(layer, (2, 6, 8), dims=(-3,), grid=(3,), tiled=True)
    ignored = torch.arange(30).view(5, 6) % 4 == 1
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    assert_exact(
        lambda x: attention(x, x, x, key_padding_mask=ignored), (5, 6, 8), dims=(-3,), grid=(lanes,), tiled=True
    )


def test_one_dim_and_three() -> None:
    line = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.BatchNorm1d(3), nn.AvgPool1d(2))
    assert_exact(line, (3, 2, 8), dims=(-3, -1), grid=(2, 2))
    volume = nn.Sequential(nn.Conv3d(2, 3, 3, padding=1), nn.BatchNorm3d(3), nn.MaxPool3d(2))
    assert_exact(volume, (3, 2, 4, 6, 4), dims=(-5, -2), grid=(2, 2))


@pytest.mark.parametrize("lanes", ["2 lanes", "2 lanes of 1x2"])
def test_dropout_drops_what_one_device_drops(lanes: str) -> None:
    # One generator serves all threads, so ranks are compared one by one with the same seed.
    x = image(SHAPE)
    torch.manual_seed(5)
    expected = F.dropout2d(F.dropout(x, 0.3), 0.2)
    where = LANES[lanes]

    def run(exchanger: ThreadExchanger) -> Tensor:
        lines = tuple(tuple(SHAPE[d] * i // n for i in range(n + 1)) for d, n in zip(where["dims"], where["grid"]))
        spec = TileSpec(lines, exchanger, where["dims"])
        parts = [slice(None)] * 4
        for d, (a, b) in zip(spec.dims, spec.box):
            parts[d] = slice(a, b)
        torch.manual_seed(5)
        out = F.dropout2d(F.dropout(TileTensor.wrap(x[tuple(parts)], spec), 0.3), 0.2)
        return out.local - expected[tuple(parts)]

    exchangers = ThreadExchanger.connect(2 if lanes == "2 lanes" else 4)
    for exchanger in exchangers:
        assert run(exchanger).abs().max() == 0


def test_lanes_alone_say_nothing() -> None:
    net = nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    ).double()

    def run(exchanger: ThreadExchanger) -> tuple[int, int]:
        x = TileTensor.wrap(image((2, 4, 9, 8)), TileSpec(((0, 2, 4),), exchanger, (-4,)))
        out = net(x)
        assert isinstance(out, TileTensor) and tuple(out.shape) == (4, 2)
        return exchanger.counter.exchanges, exchanger.counter.reductions

    assert on_threads(2, run) == [(0, 0), (0, 0)]


def test_cut_channels_are_refused() -> None:
    def run(exchanger: ThreadExchanger) -> None:
        x = TileTensor.wrap(image((4, 2, 9, 8)), TileSpec(((0, 2, 4),), exchanger, (-3,)))
        for function in (nn.Conv2d(4, 4, 3).double(), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.GroupNorm(2, 4)):
            with pytest.raises(UntiledOperation):
                function(x)

    on_threads(2, run)


def test_a_lane_gets_the_halo_of_its_own_samples() -> None:
    kernel = image((1, 1, 3, 3))

    def run(exchanger: ThreadExchanger) -> None:
        whole = image((4, 1, 6, 6))
        spec = TileSpec(((0, 2, 4), (0, 3, 6), (0, 6)), exchanger, (-4, -2, -1))
        (a, b), (c, d), _ = spec.box
        out = F.conv2d(TileTensor.wrap(whole[a:b, :, c:d], spec), kernel, padding=1)
        assert_close(out.local, F.conv2d(whole, kernel, padding=1)[a:b, :, c:d], 1e-14, "the tile")

    on_threads(4, run)


@pytest.mark.filterwarnings("ignore")  # torch's own, of functions that it is about to drop
@pytest.mark.parametrize("tiled", [False, True], ids=["lanes", "lanes of tiles"])
@pytest.mark.parametrize("name", [n for n, c in FUNCTIONAL.items() if hasattr(F, n) and not c.random | c.refused])
def test_every_function_is_exact_or_refused(name: str, tiled: bool) -> None:
    case = FUNCTIONAL[name]
    shape = case.shapes[0]
    if any(len(s) != len(shape) or s[0] != shape[0] or s[-1] != shape[-1] for s in case.shapes):
        pytest.skip("its tensors cannot all be cut alike")
    dims = (-len(shape), -1) if tiled else (-len(shape),)
    cuts = tuple((0, shape[d] // 2, shape[d]) for d in dims)
    plain = [image(s, 8).requires_grad_() for s in case.plain]
    try:
        assert_exact(case.call, case.shapes, cuts=cuts, plain=plain, dims=dims)
    except UntiledOperation as refusal:
        assert "tiling.rule(" in str(refusal) and "full()" in str(refusal)
