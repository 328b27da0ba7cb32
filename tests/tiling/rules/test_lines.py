"""Sorting, the largest few, looking up and counting; running values, differences, gradients and integrals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact, image, on_threads

GRIDS: tuple[Any, ...] = ({"grid": (1, 3)}, {"cuts": ((0, 6, 9), (0, 2, 3, 7)), "margin": 1})
SHAPE = (2, 4, 9, 7)

ALONG: dict[str, Callable[[Tensor, int], Any]] = {
    "sort": lambda x, d: [*torch.sort(x, d), *x.sort(dim=d, descending=True, stable=True), x.sort(d).values],
    "argsort": lambda x, d: [torch.argsort(x, d), x.argsort(d, True), torch.argsort(x.sign(), dim=d, stable=True)],
    "topk": lambda x, d: [*torch.topk(x, 3, d), *x.topk(2, dim=d, largest=False), x.topk(1, d).indices],
    "kthvalue": lambda x, d: [*torch.kthvalue(x, 2, d)],
}
BOUNDS = torch.linspace(-1, 1, 5, dtype=torch.float64)
OF_ALL: dict[str, Callable[[Tensor], Any]] = {
    "msort": lambda x: [torch.msort(x), x.permute(3, 0, 1, 2).msort()],
    "bucketize": lambda x: [torch.bucketize(x, BOUNDS), torch.bucketize(x, BOUNDS, right=True, out_int32=True)],
    "searchsorted": lambda x: [torch.searchsorted(BOUNDS, x), torch.searchsorted(BOUNDS, x, side="right")],
    "histc": lambda x: [torch.histc(x), x.histc(7), torch.histc(x, 5, -0.5, 1), torch.histc(x * 0, 3)],
    "histogram": lambda x: [*torch.histogram(x, 5), *torch.histogram(x, BOUNDS, weight=x * x, density=True)],
    "bincount": lambda x: torch.bincount((x.flatten() * 3).abs().long()),
}


@pytest.mark.parametrize("kwargs", GRIDS)
@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("name", ALONG)
def test_along_a_dim_equals_one_device(name: str, dim: int, kwargs: Any) -> None:
    assert_exact(lambda x: ALONG[name](x, dim), SHAPE, gradients=name != "argsort", **kwargs)


@pytest.mark.parametrize("kwargs", GRIDS)
@pytest.mark.parametrize("name", OF_ALL)
def test_of_all_values_equals_one_device(name: str, kwargs: Any) -> None:
    assert_exact(lambda x: OF_ALL[name](x), SHAPE, gradients=name == "msort", **kwargs)


def test_counts_of_a_cut_line() -> None:
    assert_exact(lambda x: torch.bincount((x * 3).abs().long(), minlength=9), (13,), grid=(3,), gradients=False)
    assert_exact(lambda x: torch.bincount((x * 3).abs().long(), x), (13,), grid=(3,), gradients=False)


def test_named_results_keep_their_names() -> None:
    def sort(exchanger: tiling.ThreadExchanger) -> None:
        x = tiling.tile(image(SHAPE), (1, 2), exchanger)
        for found in (torch.sort(x, -1), torch.topk(x, 2, 1), torch.cummax(x, -1)):
            assert isinstance(found.values, tiling.TileTensor) and found.indices.shape == found.values.shape

    on_threads(2, sort)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.meshgrid(x, x, indexing="ij"),
        lambda x: torch.searchsorted(x, torch.zeros(2, 4, 9, 1)),
        lambda x: torch.searchsorted(torch.zeros(2, 4, 9, 3), x),
        lambda x: torch.bucketize(torch.zeros(3), x),
        lambda x: torch.sort(x, out=(x, x)),
    ],
)
def test_tiles_as_tables_and_written_results_are_refused(call: Callable[[Tensor], Any]) -> None:
    with pytest.raises(UntiledOperation):
        call(tiling.tile(image(SHAPE), (1, 2), NoCommunication(0, 2)))


PLACES = {-1: image((7,)).cumsum(0), 1: image((4,)).cumsum(0)}

ALONG_RUNNING: dict[str, Callable[[Tensor, int], Any]] = {
    "cumsum": lambda x, d: [torch.cumsum(x, d), x.cumsum(dim=d), (x > 0).cumsum(d), torch.cumsum(x, axis=d)],
    "cumsum in place": lambda x, d: [(x * 1).cumsum_(d), (x * 1).cumprod_(d)],
    "cumprod": lambda x, d: [torch.cumprod(x, d), x.float().cumprod(d, dtype=torch.float64)],
    "logcumsumexp": lambda x, d: torch.logcumsumexp(x, d),
    "cummax": lambda x, d: [*torch.cummax(x, d), x.cummax(d).values, x.cummax(d).indices],
    "cummin": lambda x, d: [*torch.cummin(x, d), *torch.cummin(x.sign(), d)],
    "diff": lambda x, d: [torch.diff(x, dim=d), x.diff(2, d), torch.diff(x > 0, dim=d), torch.diff(x, 0, d)],
    "diff of more": lambda x, d: torch.diff(x, dim=d, prepend=x.narrow(d, 0, 1), append=image(x.shape).narrow(d, 0, 2)),
    "gradient": lambda x, d: [*torch.gradient(x, dim=d), *torch.gradient(x, spacing=0.5, dim=(d, 0))],
    "gradient of places": lambda x, d: [
        *torch.gradient(x, spacing=(PLACES[d],), dim=d),
        *torch.gradient(x, spacing=[2.0, 3.0], dim=(2, d), edge_order=2),
    ],
    "trapezoid": lambda x, d: [torch.trapezoid(x, dim=d), torch.trapz(x, dx=0.3, dim=d)],
    "trapezoid of places": lambda x, d: [torch.trapezoid(x, PLACES[d], dim=d), torch.trapezoid(x, x * 2, dim=d)],
    "cumulative_trapezoid": lambda x, d: [
        torch.cumulative_trapezoid(x, dim=d),
        torch.cumulative_trapezoid(x, x, dim=d),
    ],
}


@pytest.mark.parametrize("kwargs", GRIDS)
@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("name", ALONG_RUNNING)
def test_equals_one_device(name: str, dim: int, kwargs: Any) -> None:
    assert_exact(lambda x: ALONG_RUNNING[name](x, dim), SHAPE, **kwargs)


def test_every_dim_and_sequences() -> None:
    assert_exact(lambda x: [torch.cumsum(torch.cumsum(x, 2), 3), torch.gradient(x)], SHAPE, grid=(2, 2), tiled=True)
    assert_exact(lambda x: [x.cumsum(-1), *x.cummax(-1), x.diff()], (2, 11), grid=(4,), tiled=True)
    assert_exact(lambda x: [x.cumsum(0), x.diff()], (11,), grid=(3,), tiled=True)


def test_places_may_have_a_gradient() -> None:
    places = image((7,)).requires_grad_()
    assert_exact(lambda x, p: torch.trapezoid(x, p), SHAPE, grid=(1, 3), plain=[places])


def test_no_differences_are_the_tensor_itself() -> None:
    more = image((2, 4, 9, 1), 1)
    assert_exact(lambda x: torch.diff(x, 0, -1, more, more), SHAPE, grid=(1, 3))


def test_gradient_by_coordinates_where_a_tile_is_empty() -> None:
    places = [image((2,)).cumsum(0), image((4,)).cumsum(0)]
    cuts = ((0, 9), (0, 3, 3, 7))
    assert_exact(lambda x: torch.gradient(x, spacing=places, dim=(0, 1)), SHAPE, cuts=cuts, dims=(-2, -1))
