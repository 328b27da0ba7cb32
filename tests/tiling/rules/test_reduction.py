"""Reductions over any dims of tiles, with and without margins, equal one device's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from halocline import tiling
from halocline.tiling import TileTensor, UntiledOperation
from harness.ranks import assert_close, assert_exact, image, on_threads

UNEVEN = [[0, 2, 7], [0, 1, 5, 9]]

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, **k: x.sum(**k),
    "mean": lambda x, **k: torch.mean(x, **k),
    "nansum": lambda x, **k: torch.nansum(x, **k),
    "nanmean": lambda x, **k: x.nanmean(**k),
    "var": lambda x, **k: x.var(**k),
    "biased var": lambda x, **k: torch.var(x, correction=0, **k),
    "std": lambda x, **k: x.std(**k),
    "var_mean": lambda x, **k: torch.var_mean(x, **k),
    "std_mean": lambda x, **k: torch.std_mean(x, correction=0.5, **k),
    "amax": lambda x, **k: x.amax(**k),
    "amin": lambda x, **k: torch.amin(x, **k),
    "amax of ties": lambda x, **k: (x + (x.round() - x).detach()).amax(**k),
    "logsumexp": lambda x, **k: x.logsumexp(**k),
    "norm": lambda x, **k: x.norm(2, **k),
    "norm 1": lambda x, **k: x.norm(1, **k),
    "norm 3": lambda x, **k: torch.linalg.vector_norm(x, 3, **k),
    "norm inf": lambda x, **k: torch.linalg.vector_norm(x, float("inf"), **k),
    "linalg norm": lambda x, **k: torch.linalg.norm(x, ord=None, **{**k, "dim": k["dim"][:2]} if "dim" in k else k),
    "norm 0": lambda x, **k: F.relu(x).norm(0, **k),
    "count": lambda x, **k: torch.count_nonzero(F.relu(x), **{n: v for n, v in k.items() if n != "keepdim"}),
    "any": lambda x, **k: (x > 1).any(**k),
    "all": lambda x, **k: torch.all(x > -2, **k),
    "argmax": lambda x, **k: x.argmax(**k),
    "argmin": lambda x, **k: torch.argmin(x, **k),
    "max": lambda x, **k: x.max(**k),
    "min": lambda x, **k: torch.min(x, **k),
    "aminmax": lambda x, **k: torch.aminmax(x, **k),
    "prod": lambda x, **k: (x + 2).prod(**k),
    "median": lambda x, **k: x.median(**k),
    "mode": lambda x, **k: x.mode(**k),
    "kthvalue": lambda x, **k: torch.kthvalue(x, 1, **k),
    "quantile": lambda x, **k: x.quantile(0.3, **k),
}
ONE_DIM = {"argmax", "argmin", "max", "min", "aminmax", "prod", "median", "mode", "kthvalue", "quantile"}

NO_GRADIENT = {"count", "any", "all", "argmax", "argmin", "norm 0"}
try:
    torch.aminmax(torch.ones(1, requires_grad=True)).max.backward()
except RuntimeError:  # torch 2.10 knows no derivative of it
    NO_GRADIENT.add("aminmax")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(REDUCTIONS)),
    st.sampled_from([(0,), (1,), (-1,), (0, 1), (2, 3), (1, 2, 3), (0, -2, -1), (2,), (1, 3)]),
    st.booleans(),
    st.sampled_from([[[0, 7], [0, 4, 9]], [[0, 3, 7], [0, 9]], UNEVEN]),
    st.sampled_from([0, 1]),
)
def test_over_given_dims(name: str, dims: tuple[int, ...], keepdim: bool, cuts: list[list[int]], margin: int) -> None:
    kwargs: dict[str, Any] = {"dim": dims[0] if name in ONE_DIM else dims, "keepdim": keepdim}
    reduced = dims[:1] if name in ONE_DIM else dims[:2] if name == "linalg norm" else dims
    gone = {d % 4 for d in reduced}
    function = REDUCTIONS[name]
    assert_exact(
        lambda x: function(x, **kwargs),
        (2, 3, 7, 9),
        cuts=cuts,
        margin=margin,
        gradients=name not in NO_GRADIENT,
        tiled=not gone & {2, 3},
    )


TO_A_NUMBER = [*REDUCTIONS]
for _name in ("logsumexp", "mode", "kthvalue"):
    TO_A_NUMBER.remove(_name)


@pytest.mark.parametrize("name", TO_A_NUMBER)
def test_to_one_number(name: str) -> None:
    assert_exact(REDUCTIONS[name], (2, 3, 7, 9), cuts=UNEVEN, margin=1, gradients=name not in NO_GRADIENT, tiled=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(-1),
        lambda x: x.var(False),
        lambda x: x.mean(axis=1, keepdims=True),
        lambda x: x.sum((0, 2), True),
        lambda x: x.max(-1),
        lambda x: x.max(x * 0.5),
        lambda x: torch.min(x, 0.1 * x),
        lambda x: x.norm(2, 1, True),
        lambda x: x.norm(dim=-1),
        lambda x: torch.logsumexp(x, -1),
        lambda x: x.float().sum(dtype=torch.float64),
        lambda x: (x > 0).sum() * x.mean(),
        lambda x: F.cosine_similarity(x, x * x + 1),
        lambda x: x - x.amax(),
        lambda x: (x - x.mean((-1,), keepdim=True)) / (1 + x.std(-1, keepdim=True)),
    ],
)
def test_spellings_on_a_line(function: Callable[[Tensor], Any]) -> None:
    assert_exact(function, (2, 3, 11), cuts=[[0, 2, 3, 11]], margin=1)


def test_a_volume() -> None:
    assert_exact(lambda x: (x.var((2, 3, 4)), x.amax(1), x.mean(), x.prod(1)), (2, 3, 4, 5, 3), grid=(2, 2, 1))


@pytest.mark.parametrize("name", ["sum", "mean", "std", "amax", "prod", "norm", "norm inf", "any", "min", "var_mean"])
def test_ranks_without_pixels_are_left_out(name: str) -> None:
    """After pooling to 2 x 2, most of the six tiles own nothing; values are shifted so that a zero would show."""
    floats = name != "any"

    def function(x: Tensor) -> Any:
        small = F.max_pool2d(x, 4, 4) - 5
        return REDUCTIONS[name](small), REDUCTIONS[name](small, dim=1)

    assert_exact(function, (1, 2, 8, 9), grid=(1, 6), gradients=floats)


def test_deviation_of_equal_pixels_has_no_gradient() -> None:
    assert_exact(lambda x: (x * 0 + 3).std() + (x * 0).std((2, 3)).sum(), (1, 2, 6, 6), grid=(2, 2))


def test_variance_does_not_cancel() -> None:
    assert_exact(lambda x: (x + 1e8).var(), (1, 2, 6, 6), grid=(2, 2), tolerance=1e-7, gradients=False)


def test_low_precision_is_merged_in_float32() -> None:
    def run(exchanger: tiling.Exchanger) -> None:
        x = tiling.tile(value, (2, 2), exchanger)
        for name in ("sum", "mean", "var", "norm", "logsumexp"):
            kwargs = {"dim": (0, 1, 2, 3)}
            expected = REDUCTIONS[name](value.double(), **kwargs).to(torch.bfloat16)
            assert_close(REDUCTIONS[name](x, **kwargs), expected, 2**-8, name)

    value = image((2, 3, 16, 16), dtype=torch.bfloat16)
    on_threads(4, run)


def test_what_has_no_rule_says_so() -> None:
    x = tiling.tile(torch.zeros(1, 2, 4, 4), (1, 2), tiling.NoCommunication(0, 2))
    assert isinstance(x, TileTensor)
    calls: list[Callable[[], Any]] = [
        lambda: torch.sum(x, 1, out=torch.zeros(1, 4, 4)),
        lambda: torch.linalg.norm(x, 2, (-2, -1)),
        lambda: torch.norm(x, "nuc"),
    ]
    for call in calls:
        with pytest.raises(UntiledOperation):
            call()
    with pytest.raises(ValueError, match=r"dtype=torch\.float32"):
        (x > 0).mean()
    with pytest.raises(IndexError, match="dim 4 is out of range"):
        x.sum(4)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["any", "all", "sum", "mean", "nansum", "amax", "amin", "std", "var"])
def test_an_empty_list_of_dims_means_what_it_means_to_torch(name: str, keepdim: bool) -> None:
    function = getattr(torch, name)
    assert_exact(
        lambda x: function(x, dim=[], keepdim=keepdim),
        (1, 4, 3, 2),
        cuts=[[0, 1, 2, 3], [0, 2]],
        gradients=name not in ("any", "all"),
    )


def test_a_dim_may_be_a_tensor() -> None:
    one = torch.tensor(1)
    assert_exact(lambda x: [x.max(one, False)[0], x.max(one), x.min(one, True)[0]], (2, 4, 6, 5), grid=(1, 2))


def test_quantiles_of_channels_on_empty_tiles() -> None:
    def run(x: Tensor) -> list[Tensor]:
        several = torch.tensor([0.2, 0.7], dtype=torch.float64)
        return [x.quantile(0.3, 1), torch.nanquantile(x, several, dim=-3, keepdim=True), x.quantile(several, 0)]

    assert_exact(run, (2, 3, 7, 5), cuts=[[0, 0, 7], [0, 3, 5]], dims=(-2, -1))


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
@pytest.mark.parametrize("cuts", [UNEVEN, [[0, 7], [0, 4, 4, 9]]])
def test_a_learned_quantile_has_its_gradient(name: str, cuts: Any) -> None:
    wanted = torch.tensor([0.3, 0.8], dtype=torch.float64, requires_grad=True)
    tiles: dict[str, Any] = {"cuts": cuts, "dims": (-2, -1), "plain": [wanted]}
    for dim in (1, 2, None):
        assert_exact(lambda x, q, dim=dim: getattr(torch, name)(x, q, dim), (2, 5, 7, 9), **tiles)
        assert_exact(lambda x, q, dim=dim: getattr(x, name)(q=q, dim=dim), (2, 5, 7, 9), **tiles)


def test_the_norm_of_frobenius() -> None:
    for dims in ((2, 3), (1, 2), (0, -1)):
        assert_exact(lambda x, dims=dims: torch.linalg.norm(x, "fro", dims), (2, 5, 7, 9), cuts=UNEVEN)
        assert_exact(lambda x, dims=dims: torch.linalg.matrix_norm(x, "fro", dims, True), (2, 5, 7, 9), cuts=UNEVEN)
    assert_exact(lambda x: torch.linalg.norm(x, ord="fro"), (7, 9), cuts=UNEVEN)
    with pytest.raises(UntiledOperation, match=r"torch.linalg.matrix_norm\(.*other than 'fro'"):
        assert_exact(lambda x: torch.linalg.norm(x, 1, (2, 3)), (2, 5, 7, 9), cuts=UNEVEN)
