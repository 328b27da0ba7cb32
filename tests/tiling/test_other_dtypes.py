"""Integers, bools, half floats and complex numbers, on empty tiles too: made, rounded and typed as on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.ranks import assert_exact

CUTS: tuple[Any, ...] = ([[0, 2, 6], [0, 6]], [[0, 6], [0, 0, 5, 6]])

INTEGERS: dict[str, Callable[[Tensor], Any]] = {
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "avg_pool2d by a divisor": lambda x: F.avg_pool2d(x, 3, 1, 1, False, False, 2),
    "local_response_norm": lambda x: F.local_response_norm(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
}
BYTES: dict[str, Callable[[Tensor], Any]] = {
    "bilinear": lambda x: F.interpolate(x, size=(4, 9), mode="bilinear"),
    "bilinear, enlarged": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, antialiased": lambda x: F.interpolate(x, size=4, mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x, size=7, mode="bicubic", align_corners=True),
}
COMPLEX: dict[str, Callable[[Tensor], Any]] = {
    "norm 0": lambda x: torch.linalg.vector_norm(x, 0),
    "norm 0 over pixels": lambda x: torch.linalg.vector_norm(x, 0, (2, 3), True),
    "constant_pad_nd": lambda x: torch.constant_pad_nd(x, (1, 2), 1 + 2j),
}


def exact(call: Callable[[Tensor], Any], dtype: torch.dtype, cuts: Any, shape: Any = (2, 4, 6, 6)) -> None:
    def made(x: Tensor) -> Any:
        return call((x * 30).round().abs().to(dtype) if not dtype.is_complex else torch.complex(x, -x))

    assert_exact(made, shape, cuts=cuts, dims=(-2, -1), gradients=False, tolerance=1e-6)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, cuts: Any) -> None:
    exact(INTEGERS[name], torch.int64, cuts)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_interpolated_as_on_one_device(name: str, cuts: Any) -> None:
    exact(BYTES[name], torch.uint8, cuts)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name: str, cuts: Any) -> None:
    exact(COMPLEX[name], torch.complex128, cuts)


@pytest.mark.parametrize("cuts", CUTS)
def test_bools_stay_bools_on_an_empty_tile(cuts: Any) -> None:
    exact(lambda x: F.pixel_unshuffle(x, 2), torch.bool, cuts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_adaptive_pooling_of_volumes_in_half_precision(dtype: torch.dtype) -> None:
    call = lambda x: F.adaptive_avg_pool3d(x, (None, 2, 3))  # noqa: E731
    assert_exact(call, (1, 2, 3, 4, 6), cuts=[[0, 1, 3], [0, 4], [0, 5, 6]], dtype=dtype, tolerance=2e-2)
