"""Attention with tiled queries, keys or values equals one device's."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from ranks import assert_exact, image, on_processes
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import TileTensor, UntiledOperation

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


def test_cut_channels_are_refused() -> None:
    x = tiling.tile(torch.zeros(2, 3, 4, 6), (1, 2), tiling.NoCommunication(0, 2))
    with pytest.raises(UntiledOperation, match="channels, dim -1, are cut"):
        F.scaled_dot_product_attention(x, x, x)
    with pytest.raises(UntiledOperation, match="only the sequence, dim 0, or the batch may be cut"):
        nn.MultiheadAttention(6, 2)(x[0], x[0], x[0])
