"""Numbers may be numpy's, or tensors without dims, wherever torch takes them for ints."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.ranks import assert_exact, image

Number = Callable[[int], Any]
CALLS: dict[str, Callable[[Tensor, Number], Any]] = {
    "conv2d": lambda x, n: F.conv2d(x, image((4, 4, 3, 3)), stride=n(2), padding=(n(1), n(0)), groups=n(1)),
    "conv_transpose2d": lambda x, n: F.conv_transpose2d(x, image((4, 4, 3, 3)), stride=n(2), output_padding=n(1)),
    "max_pool2d": lambda x, n: F.max_pool2d(x, n(2), (n(2), n(1)), n(1)),
    "avg_pool2d": lambda x, n: F.avg_pool2d(x, n(2), divisor_override=n(3)),
    "lp_pool2d": lambda x, n: F.lp_pool2d(x.abs() + 1, 2, (n(2), n(2))),
    "adaptive_avg_pool2d": lambda x, n: [
        F.adaptive_avg_pool2d(x, (n(1), n(1))),
        F.adaptive_avg_pool2d(x, (None, n(2))),
    ],
    "adaptive_max_pool2d": lambda x, n: F.adaptive_max_pool2d(x, (n(3), n(2))),
    "interpolate": lambda x, n: F.interpolate(x, size=(n(4), n(3))),
    "pad": lambda x, n: [F.pad(x, (n(1), n(2))), F.pad(x, (n(1), n(2), n(0), n(1)), "reflect")],
    "sum": lambda x, n: [x.sum(n(1)), x.sum((n(1), n(-1))), x.mean(n(-1), keepdim=True)],
    "logsumexp": lambda x, n: x.logsumexp(n(1)),
    "quantile": lambda x, n: x.quantile(0.5, n(1)),
    "kthvalue": lambda x, n: x.kthvalue(n(2), n(1))[0],
    "max": lambda x, n: [x.amax((n(2), n(3))), x.max(1)[0]],
    "norms": lambda x, n: [torch.linalg.norm(x, 2, n(1)), torch.linalg.vector_norm(x, dim=n(1)), x.std(n(1))],
    "shapes": lambda x, n: [x.view(n(2), n(-1), n(6), n(5)), x.permute(n(0), n(2), n(3), n(1)), x.unsqueeze(n(-1))],
    "repeats": lambda x, n: [x.repeat(n(1), n(2), n(1), n(1)), x.repeat_interleave(n(2), n(1))],
    "rolls": lambda x, n: [x.roll(n(2), n(-1)), x.roll((n(2), n(1)), (n(-1), n(-2))), x.flip(n(-1))],
    "pieces": lambda x, n: [*x.chunk(n(2), n(1)), *x.tensor_split(n(2), n(-1)), *x.split([n(1), n(3)], n(1))],
    "narrow": lambda x, n: [x.narrow(n(3), n(1), n(2)), x.select(n(1), n(2)), *x.unbind(n(1))],
    "joined": lambda x, n: [torch.cat([x, x], n(-1)), torch.stack([x, x], n(1))],
    "diagonals": lambda x, n: [x.diagonal(n(1), n(0), n(1)), torch.diagonal(x, dim1=n(2), dim2=n(3))],
    "variances": lambda x, n: [
        x.var(1, correction=n(2)),
        torch.std(x, correction=n(1)),
        x.std((2, 3), correction=n(0)),
    ],
    "integrals": lambda x, n: [torch.trapezoid(x, dx=n(2), dim=n(1)), torch.cumulative_trapezoid(x, dx=n(3))],
    "softmax": lambda x, n: [F.softmax(x, n(1)), F.softmax(x, n(-1)), F.glu(x, n(1))],
}


@pytest.mark.parametrize("number", [np.int64, torch.tensor], ids=["numpy", "tensor"])
@pytest.mark.parametrize("name", CALLS)
def test_is_exact(name: str, number: Number) -> None:
    assert_exact(lambda x: CALLS[name](x, number), (2, 4, 6, 5), cuts=[[0, 6], [0, 2, 5]])


@pytest.mark.parametrize("number", [np.float32, torch.tensor], ids=["numpy", "tensor"])
def test_a_narrow_number_does_not_narrow_the_result(number: Callable[[float], Any]) -> None:
    assert_exact(lambda x: [x.var((2, 3), correction=number(0.1)), x.std(correction=number(0.3))], (2, 4, 6, 5), (1, 2))
    assert_exact(lambda x: torch.trapezoid(x, dx=number(0.1)), (2, 4, 6, 5), (1, 2))
