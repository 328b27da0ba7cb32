"""How much travels: messages and bytes of single operators and of whole steps, counted by the exchanger."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from halocline import tiling
from harness.ranks import image, on_threads


def count(function, shape: tuple[int, ...], grid: tuple[int, ...], backward: bool = False) -> list[tiling.Traffic]:  # type: ignore[no-untyped-def]
    """What each rank sends in a forward (or a forward and backward) of `function`."""
    size = torch.Size(grid).numel()

    def run(exchanger: tiling.Exchanger) -> tiling.Traffic:
        x = tiling.tile(image(shape), grid, exchanger).requires_grad_(backward)
        traffic = tiling.traffic(exchanger)
        traffic.reset()
        out = function(x)
        if backward:
            out.local.sum().backward()
        return traffic

    return on_threads(size, run)


def test_a_row_of_halo_per_neighbour_and_one_message_each() -> None:
    weight = image((2, 3, 3, 3))
    first, middle, last = count(lambda x: F.conv2d(x, weight, padding=1), (2, 3, 12, 10), (3, 1))
    row = 2 * 3 * 10 * 8
    assert (first.messages, middle.messages, last.messages) == (1, 2, 1)
    assert (first.bytes, middle.bytes, last.bytes) == (row, 2 * row, row)
    assert {t.exchanges for t in (first, middle, last)} == {1}


def test_corners_travel_in_messages_of_their_own() -> None:
    weight = image((1, 1, 3, 3))
    for traffic in count(lambda x: F.conv2d(x, weight, padding=1), (1, 1, 8, 8), (2, 2)):
        assert (traffic.messages, traffic.bytes) == (3, (4 + 4 + 1) * 8)


def test_the_backward_returns_what_the_forward_sent() -> None:
    weight = image((1, 1, 5, 3)).requires_grad_()
    for traffic in count(lambda x: F.conv2d(x, weight, padding=(2, 1)), (1, 1, 16, 8), (2, 1), backward=True):
        assert (traffic.exchanges, traffic.messages, traffic.bytes) == (2, 2, 2 * (2 * 8 * 8))


def test_a_halo_wider_than_the_neighbour_asks_further_ones() -> None:
    weight = image((1, 1, 7, 1))
    traffic = count(lambda x: F.conv2d(x, weight, padding=(3, 0)), (1, 1, 8, 4), (4, 1))
    # Rows 0-1 | 2-3 | 4-5 | 6-7: each tile needs three rows each way, from two neighbours.
    assert [t.messages for t in traffic] == [2, 3, 3, 2]
    assert {t.exchanges for t in traffic} == {1}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.relu(x) * 2 + x,
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 2, 2),
        lambda x: F.conv2d(x, image((2, 3, 2, 2)), stride=2),
        nn.Conv2d(3, 2, 1).double(),
        nn.BatchNorm2d(3).double().eval(),
    ],
)
def test_what_needs_no_neighbour_sends_nothing(function) -> None:  # type: ignore[no-untyped-def]
    for traffic in count(function, (1, 3, 8, 8), (2, 2)):
        assert (traffic.exchanges, traffic.messages, traffic.bytes, traffic.reductions) == (0, 0, 0, 0)


@pytest.mark.parametrize("policy", ["auto", "never", "always"])
def test_overlap_changes_no_message(policy: tiling.Policy) -> None:
    weight = image((2, 2, 3, 3)).requires_grad_()

    def run(x: tiling.TileTensor) -> torch.Tensor:
        with tiling.overlap(policy):
            return F.conv2d(x, weight, padding=1)

    for traffic in count(run, (1, 2, 16, 16), (2, 2), backward=True):
        assert (traffic.exchanges, traffic.messages, traffic.bytes) == (2, 6, 2 * (8 + 8 + 1) * 2 * 8)


def test_fused_layers_send_fewer_and_wider_messages() -> None:
    layers = nn.Sequential(*[nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(4)]).double()

    def fused(n: int):  # type: ignore[no-untyped-def]
        def run(x: tiling.TileTensor) -> torch.Tensor:
            with tiling.fused(n):
                return layers(x)

        return run

    row = 12 * 8
    expected = {1: (4, 4, 4 * row), 2: (2, 2, 4 * row), 4: (1, 1, 4 * row)}
    for n, (exchanges, messages, sent) in expected.items():
        for traffic in count(fused(n), (1, 1, 16, 12), (2, 1)):
            assert (traffic.exchanges, traffic.messages, traffic.bytes) == (exchanges, messages, sent), n


def test_attention_along_rows_fetches_only_the_rest_of_its_own_rows() -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 2, 3, 1)
        return F.scaled_dot_product_attention(x, 2 * x, x - 1)

    for traffic in count(rows, (1, 4, 8, 6), (2, 2)):
        # Keys and values of 4 rows and 3 columns go to the one neighbour in the same rows.
        assert (traffic.messages, traffic.bytes) == (2, 2 * 4 * 3 * 4 * 8)


def test_choosing_and_writing_a_class_per_pixel_sends_nothing() -> None:
    target = image((2, 1, 12, 10), 1).abs().long() % 3

    def classes(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x).scatter_(1, target, 1.0) * x.gather(1, target)
        y[target.expand_as(y) == 1] = 0.0
        return y

    assert all(traffic.exchanges == traffic.reductions == 0 for traffic in count(classes, (2, 3, 12, 10), (2, 2)))
