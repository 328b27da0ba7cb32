"""Softmax and its kin: over channels on each pixel held, over pixels with the maximum and the sum of all ranks.

Along a line cut into tiles one small merge suffices; along one of several spatial dims the tensor is gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.rules.elementwise import named
from halocline.tiling.rules.gathered import cut_within, on_whole
from halocline.tiling.tensor import TileTensor, rule, rules, untiled


def _from_logsumexp(x: TileTensor, dim: int, log: bool, dtype: torch.dtype | None) -> Tensor:
    """Softmax along the only spatial dim."""
    if dtype is None and x.local.is_cuda and torch.is_autocast_enabled("cuda"):
        dtype = torch.promote_types(x.dtype, torch.float32)
    result = dtype or x.dtype
    wide = torch.promote_types(result, torch.float32)
    values = x if x.dtype == wide else x.to(wide)
    shifted = values - torch.logsumexp(values, dim, keepdim=True)
    return (shifted if log else shifted.exp()).to(result).contiguous()


@rules(named("softmax log_softmax softmin"))
def softmax(
    function: Callable[..., Tensor],
    input: TileTensor,
    dim: int | None = None,
    *args: Any,
    dtype: torch.dtype | None = None,
) -> Any:
    # The functional form has another argument, only for its warnings, before the dtype.
    dtype = dtype or next((a for a in args if isinstance(a, torch.dtype)), None)
    if dim is None:
        raise untiled(function, (input, dim), why="without dim torch guesses it from the number of dims; give dim=")
    if not -input.ndim <= dim < input.ndim:
        raise IndexError(f"dim {dim} is out of range for a tensor of {input.ndim} dims")
    if not cut_within(input, dim):
        return TileTensor.wrap(function(input.local, dim, dtype=dtype), input.spec)
    name = function.__name__
    if len(input.spec.dims) == 1:
        return _from_logsumexp(-input if name == "softmin" else input, dim, name == "log_softmax", dtype)  # type: ignore[arg-type]
    return on_whole(partial(function, dim=dim, dtype=dtype), input)


@rule(F.gumbel_softmax)
def gumbel_softmax(
    logits: TileTensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> TileTensor:
    """Every rank draws the noise of the whole image, so that ranks with equal seeds see what one device sees."""
    return on_whole(partial(F.gumbel_softmax, tau=tau, hard=hard, eps=eps, dim=dim), logits)
