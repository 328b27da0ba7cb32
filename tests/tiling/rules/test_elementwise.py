"""Special functions of each pixel; test_torch_sweep.py tries the others of one or two tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ranks import assert_exact, image

CUTS = ((0, 6, 9), (0, 2, 7))


def test_functions_that_take_more_than_tensors() -> None:
    def call(x: Tensor) -> list[Tensor]:
        positive = x.abs() + 0.5
        return [
            torch.polygamma(1, positive),
            positive.polygamma(2),
            torch.special.multigammaln(positive + 2, 2),
            torch.special.zeta(positive.detach() + 1, 2.0),
            torch.special.xlog1py(image((9, 7)), positive),
            torch.special.gammainc(torch.full((9, 1), 0.5, dtype=torch.float64), positive),
        ]

    assert_exact(call, (2, 3, 9, 7), cuts=CUTS, margin=1, tiled=True)


def test_whole_numbers_and_parts_of_numbers() -> None:
    def call(x: Tensor) -> list[Tensor]:
        found = torch.frexp(x)
        return [*found, found.mantissa, torch.isin((x * 3).long(), torch.tensor([0, 2])), torch.isin(x.sign(), 1.0)]

    assert_exact(call, (2, 3, 9, 7), cuts=CUTS, gradients=False)
