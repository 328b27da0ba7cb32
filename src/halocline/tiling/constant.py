"""Small tensors that depend on sizes only (divisors, weights, indices), made once and kept.

Nothing is kept while a dispatch mode is active: what a shape-only run makes has no data and must not be found later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def constant(function: Callable[P, T]) -> Callable[P, T]:
    """Like `lru_cache`, for functions that return tensors."""

    @lru_cache(maxsize=1024)
    def kept(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch.inference_mode(False):  # or a later backward could not use it
            return function(*args, **kwargs)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch._C._len_torch_dispatch_stack():
            return function(*args, **kwargs)
        return kept(*args, **kwargs)  # type: ignore[arg-type]

    return call
