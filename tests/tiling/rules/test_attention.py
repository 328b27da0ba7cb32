"""Attention with tiled queries, keys or values equals one device's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import TileTensor
from harness.ranks import assert_exact, image, on_processes

LINE = [[0, 2, 7, 11]]


def heads(x: Tensor) -> Tensor:
    """(N, C, L) to (N, 2 heads, L, C / 2)."""
    return x.unflatten(1, (2, -1)).transpose(-1, -2)


MASK = image((11, 11), 4)

SEQUENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: F.scaled_dot_product_attention(heads(x), heads(2 * x), heads(x * x)),
    "causal": lambda x: F.scaled_dot_product_attention(heads(x), heads(2 * x), heads(x * x), is_causal=True),
    "mask": lambda x: F.scaled_dot_product_attention(heads(x), heads(2 * x), heads(x * x), MASK),
    "bool mask": lambda x: F.scaled_dot_product_attention(heads(x), heads(x), heads(x), MASK.tril() > -1),
    "mask of keys": lambda x: F.scaled_dot_product_attention(heads(x), heads(x), heads(x), MASK[:1]),
    "scale": lambda x: F.scaled_dot_product_attention(heads(x), heads(x), heads(x), scale=0.3),
    "other keys": lambda x: F.scaled_dot_product_attention(heads(x), image((2, 2, 5, 3)), image((2, 2, 5, 4))),
    "fewer keys": lambda x: F.scaled_dot_product_attention(heads(x), heads(x[..., 3:8]), heads(x[..., 3:8])),
    "other queries": lambda x: F.scaled_dot_product_attention(image((2, 2, 5, 3)), heads(x), heads(x)),
    "grouped": lambda x: F.scaled_dot_product_attention(heads(x), heads(x)[:, :1], heads(x)[:, :1], enable_gqa=True),
}


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name: str, margin: int) -> None:
    assert_exact(SEQUENCES[name], (2, 6, 11), cuts=LINE, margin=margin, tiled=name != "other queries")


def test_queries_without_pixels() -> None:
    pooled = SEQUENCES["plain"]
    assert_exact(lambda x: pooled(F.max_pool1d(x, 4)), (2, 6, 12), grid=(6,))


def rows(x: Tensor) -> Tensor:
    """(N, C, H, W) to (N, H, W, C): each row of pixels is a sequence."""
    return x.permute(0, 2, 3, 1)


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("cuts", [[[0, 2, 7], [0, 9]], [[0, 7], [0, 4, 9]], [[0, 2, 7], [0, 4, 9]]])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_of_an_image(cuts: list[list[int]], margin: int, causal: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(rows(x), rows(2 * x), rows(x * x), is_causal=causal)

    assert_exact(function, (2, 3, 7, 9), cuts=cuts, margin=margin, tiled=True)


def test_all_pixels_of_an_image() -> None:
    def function(x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        return F.scaled_dot_product_attention(tokens, 2 * tokens, tokens * tokens).transpose(1, 2).view(x.shape)

    assert_exact(function, (2, 3, 7, 9), grid=(2, 2))


class Attention(nn.Module):
    def __init__(self, weights: bool = False, mask: Tensor | None = None, batched: bool = True, **kwargs: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(6, 2, **kwargs)
        self.weights, self.mask, self.batched = weights, mask, batched
        self.first = kwargs.get("batch_first", False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x.transpose(-1, -2) if self.first or not self.batched else x.permute(2, 0, 1)
        out, weights = self.attention(x, x, x, need_weights=self.weights, attn_mask=self.mask)
        return (out,) if weights is None else (out, weights)


CAUSAL = torch.ones(11, 11, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize(
    "module",
    [
        Attention(),
        Attention(weights=True),
        Attention(mask=CAUSAL),
        Attention(mask=image((4, 11, 11)), weights=True),
        Attention(batch_first=True),
        Attention(batch_first=True, add_bias_kv=True, add_zero_attn=True),
        Attention().eval(),
        Attention(batch_first=True).eval(),
    ],
)
def test_multihead(module: nn.Module, margin: int) -> None:
    assert_exact(module, (2, 6, 11), cuts=LINE, margin=margin, tiled=True)


def test_multihead_without_batch() -> None:
    assert_exact(Attention(batched=False, weights=True), (6, 11), cuts=LINE, tiled=True)


def dropout_on_a_process() -> None:
    torch.manual_seed(0)
    net = Attention(weights=True, dropout=0.3).double()
    x = image((2, 6, 12))
    torch.manual_seed(1)
    expected = [*net(x), F.scaled_dot_product_attention(heads(x), heads(x), heads(x), dropout_p=0.2)]
    torch.manual_seed(1)
    t = tiling.tile(x, (2,))
    outs = [*net(t), F.scaled_dot_product_attention(heads(t), heads(t), heads(t), dropout_p=0.2)]
    for out, wanted in zip(outs, expected):
        assert isinstance(out, TileTensor)
        torch.testing.assert_close(out.full(), wanted, rtol=1e-12, atol=1e-12)


def test_dropout_is_one_devices() -> None:
    on_processes(2, dropout_on_a_process)


def test_channels_that_are_cut_are_gathered() -> None:
    assert_exact(lambda x: F.scaled_dot_product_attention(x, 2 * x, x * x), (2, 3, 4, 6), grid=(1, 2), tiled=True)
    assert_exact(lambda x: F.scaled_dot_product_attention(x, x, x[..., :4]), (2, 3, 4, 6), grid=(2, 1), tiled=False)
    assert_exact(lambda x: F.scaled_dot_product_attention(x, x, x), (2, 3, 4, 6), grid=(2, 2), margin=1)

    class Pixels(Attention):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return self.attention(x[0], x[1], x[1])

    assert_exact(Pixels(), (2, 3, 4, 6), grid=(2, 2))


BROADCAST: dict[str, Callable[[Tensor], Tensor]] = {
    "keys of other samples": lambda x: F.scaled_dot_product_attention(rows(x)[:, :1], rows(x), rows(x)),
    "plain keys": lambda x: F.scaled_dot_product_attention(rows(x), image((7, 5, 3)), image((7, 5, 4))),
    "one line of plain keys": lambda x: F.scaled_dot_product_attention(rows(x), image((5, 3)), image((1, 5, 4))),
    "other keys": lambda x: F.scaled_dot_product_attention(rows(x), rows(x)[:, :, 2:8], rows(x).flip(1)[:, :, 3:]),
    "a mask per row": lambda x: F.scaled_dot_product_attention(rows(x), rows(x), rows(x), image((7, 9, 9), 3)),
    "a mask of all rows": lambda x: F.scaled_dot_product_attention(rows(x), rows(x), rows(x), image((1, 9), 3) > 0),
    "a mask of tiles": lambda x: F.scaled_dot_product_attention(rows(x), rows(x), rows(x), (x[:, 0] > 9)[..., None, :]),
    "shared heads": lambda x: F.scaled_dot_product_attention(
        rows(x).unsqueeze(1).repeat(1, 2, 1, 1, 1).transpose(1, 2), *[rows(x).unsqueeze(2)] * 2, enable_gqa=True
    ),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_keys_and_masks_of_other_shapes(name: str) -> None:
    for cuts in AXES:
        assert_exact(BROADCAST[name], (2, 3, 7, 9), cuts=cuts, dims=(-2, -1))


AXES = [[[0, 2, 7], [0, 4, 9]], [[0, 7], [0, 1, 9]], [[0, 3, 4, 7], [0, 9]], [[0, 2, 2, 7], [0, 9]]]


class Axial(nn.Module):
    """Attention along the columns and then along the rows of an image, by sequences of pixels."""

    def __init__(self, first: bool, layer: bool = False, **kwargs: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.kwargs = first, kwargs
        self.attend = nn.ModuleList(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=first)
            if layer
            else nn.MultiheadAttention(4, 2, batch_first=first)
            for _ in range(2)
        )

    def along(self, attend: nn.Module, x: Tensor) -> Tensor:
        """Over dim 1 of (batch, sequence, other, channels)."""
        b, n, m, c = x.shape
        if self.first:
            y = x.permute(0, 2, 1, 3).reshape(b * m, n, c)
        else:
            y = x.transpose(0, 1).reshape(n, b * m, c)
        y = attend(y, y, y, **self.kwargs)[0] if isinstance(attend, nn.MultiheadAttention) else attend(y)
        if self.first:
            return y.reshape(b, m, n, c).permute(0, 2, 1, 3)
        return y.reshape(n, b, m, c).transpose(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = x + self.along(self.attend[0], x)
        x = x.transpose(1, 2)
        x = x + self.along(self.attend[1], x)
        return x.permute(0, 3, 2, 1)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "module",
    [Axial(True), Axial(False), Axial(False, need_weights=False), Axial(True, layer=True), Axial(False, layer=True)],
)
def test_axial_attention(module: nn.Module, batch: int) -> None:
    for cuts in AXES:
        assert_exact(module, (batch, 4, 7, 9), cuts=cuts, dims=(-2, -1), tolerance=1e-11)
    assert_exact(module.eval(), (batch, 4, 7, 9), cuts=AXES[0], gradients=False)


def test_axial_attention_of_a_square_of_as_many_channels() -> None:
    for first in (True, False):
        assert_exact(Axial(first), (1, 4, 4, 4), grid=(2, 2), margin=1)


class Masked(nn.Module):
    """Rows of one image as sequences (first dim) or as samples, with masks of both kinds and weights."""

    def __init__(self, dims: tuple[int, ...], heads: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.dims, self.heads = nn.MultiheadAttention(4, 2, add_zero_attn=True), dims, heads
        self.bias = nn.Parameter(torch.randn(18 if dims[0] == 2 else 14, *(7, 7) if dims[0] == 2 else (9, 9)))

    def forward(self, x: Tensor) -> Any:
        x = x[0].permute(self.dims[0] - 1, self.dims[1] - 1, 0)
        ignored = image((x.shape[1], x.shape[0]), 2)
        both = self.attention(x, x, x, ignored, attn_mask=self.bias, average_attn_weights=not self.heads)
        return *both, self.attention(x, x * 2, x, attn_mask=self.bias[0], average_attn_weights=self.heads)


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("dims", [(2, 3), (3, 2)])
def test_masks_and_weights_of_sequences_side_by_side(dims: tuple[int, ...], heads: bool) -> None:
    for cuts in AXES:
        assert_exact(Masked(dims, heads), (1, 4, 7, 9), cuts=cuts, dims=(-2, -1), tiled=True)


def test_keys_cut_in_another_dim_than_the_queries() -> None:
    """Equal cuts of the sequence are no cuts of the batch."""

    class Crossed(Attention):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = x[0].permute(1, 2, 0)
            return self.attention(y, y.transpose(0, 1), y.transpose(0, 1), need_weights=False)

    assert_exact(Crossed(), (1, 6, 8, 8), grid=(2, 2))
    assert_exact(Crossed(), (1, 6, 8, 8), grid=(1, 2))
