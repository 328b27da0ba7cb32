"""Complex tiles: parts, pairs, conjugates, adjoints, and what acts on each pixel alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from halocline import tiling
from halocline.tiling import UntiledOperation
from harness.ranks import assert_close, assert_exact, image, on_processes

WEIGHT = torch.view_as_complex(image((3, 1, 1, 2))).requires_grad_()
MAP = torch.view_as_complex(image((9, 7, 2))).requires_grad_()
SHAPES = (4, 3, 3, 3), (3, 4, 3, 3), (4,)
MATRIX = torch.view_as_complex(image((5, 3, 2))).requires_grad_()


def given(x: Tensor) -> Tensor:
    return torch.complex(x[:, :3], x[:, 3:])


def written(z: Tensor) -> Tensor:
    z = z * 1
    z.real.copy_(z.imag * 2)
    z.imag.mul_(image((9, 7)))
    return z


CASES: dict[str, Callable[..., Any]] = {
    "parts": lambda z: [z.real, z.imag, torch.real(z), torch.imag(z), z.abs(), z.angle(), torch.sgn(z)],
    "pairs": lambda z: [torch.view_as_real(z), torch.view_as_complex(torch.view_as_real(z) * 2)],
    "pairs in front": lambda z: torch.view_as_complex(
        torch.stack([z.real, z.imag]).permute(1, 2, 3, 4, 0).contiguous()
    ),
    "conjugates": lambda z: [z.conj(), z.conj().imag, z.conj().resolve_conj(), z.conj_physical(), (z * z.conj()).real],
    "lazy conjugates travel": lambda z: [torch.roll(z.conj(), 2, -1), torch.roll(z.conj().imag, 2, -1), z.conj().sum()],
    "adjoints": lambda z: [z.mH, z.adjoint(), torch.adjoint(z.real), z.mT],
    "products": lambda z: [z * z, z / (z + 3), z * 2j, torch.exp(z), z**2, torch.polar(z.abs(), z.angle())],
    "reductions": lambda z: [z.sum(), z.mean((2, 3)), z.sum(1), z.abs().amax((2, 3)), torch.linalg.vector_norm(z)],
    "variances": lambda z: [z.var(), z.std((2, 3)), z.var(1), *torch.var_mean(z, -1), *torch.std_mean(z, correction=0)],
    "shapes": lambda z: [torch.roll(z, (1, 2), (-2, -1)), z[..., 1:5, ::2], torch.flip(z, (3,)), z.flatten(2)],
    "written": written,
    "asked": lambda z: [z.real * z.is_complex(), z.real * z.conj().is_conj(), z.cdouble() * z.is_neg()],
}


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_equals_one_device(name: str, margin: int) -> None:
    def call(x: Tensor) -> Any:
        z = given(x)
        return CASES[name](z)

    assert_exact(call, (2, 6, 9, 7), cuts=((0, 6, 9), (0, 2, 7)), margin=margin)


def test_complex_parameters() -> None:
    def call(x: Tensor, weight: Tensor, map: Tensor, matrix: Tensor) -> list[Tensor]:
        z = given(x)
        mixed = torch.einsum("bihw,oi->bohw", z, matrix)
        return [x[:, :3] * weight, z * map, mixed, (z * weight).abs(), torch.complex(x[:, :3], map.real)]

    assert_exact(call, (2, 6, 9, 7), cuts=((0, 6, 9), (0, 2, 7)), plain=[WEIGHT, MAP, MATRIX])


@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_of_complex_numbers(bias: bool) -> None:
    weight, transposed, shift = (torch.view_as_complex(image((*s, 2))).requires_grad_() for s in SHAPES)

    def call(x: Tensor, weight: Tensor, transposed: Tensor, shift: Tensor) -> list[Tensor]:
        z, b = given(x), shift if bias else None
        return [F.conv2d(z, weight, b, 2, 1), F.conv_transpose2d(z, transposed, b, 2, 1)]

    assert_exact(call, (2, 6, 9, 7), cuts=((0, 6, 9), (0, 2, 7)), plain=[weight, transposed, shift], tiled=True)


def test_pairs_of_pixels_are_refused() -> None:
    x = tiling.tile(image((1, 2, 6, 2)), (1, 2), tiling.NoCommunication(0, 2))
    with pytest.raises(UntiledOperation, match="last dim is cut"):
        torch.view_as_complex(x)


def conjugates_between_processes() -> None:
    """A message carries memory, in which a lazy conjugate is not computed yet."""
    whole = torch.view_as_complex(image((1, 2, 6, 8, 2)))
    x = tiling.tile(whole, (1, 2))
    for actual, expected in (
        (x.conj().full(), whole.conj()),
        (x.conj().imag.full(), whole.conj().imag),
        (x[:1, :1].conj().full(), whole[:1, :1].conj()),
        (x.conj().sum(), whole.conj().sum()),
        (x.conj().prod(), whole.conj().prod()),
    ):
        assert_close(actual, expected, 1e-12, "conjugate")


def test_a_lazy_conjugate_is_computed_before_it_travels() -> None:
    on_processes(2, conjugates_between_processes)
