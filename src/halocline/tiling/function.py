"""torch.autograd.Function, for which a gradient that nobody has is none: torch makes zeros of it.

In a gradient of gradients, autograd visits nodes that nothing depends on. torch's own operators pass None on there, and
a parameter behind them keeps its `.grad` of None; zeros would let a weight decay or a momentum move it. Knows autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction


class Function(torch.autograd.Function):
    """One whose `backward` is called if some result has a gradient, then with zeros for the others.

    Ranks run the same operators, so either all of them have a gradient here or none: none of them exchanges then.
    """

    run: ClassVar[Callable[..., Any]]
    """`apply`, without its search for functorch's transforms, which a tile does not go through."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.run = super(_SingleLevelFunction, cls).apply  # type: ignore[misc]
        cls.forward = staticmethod(_noting(cls.forward))  # type: ignore[method-assign]
        cls.backward = staticmethod(_passing(cls.backward))  # type: ignore[method-assign]


def _noting(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(ctx: Any, *args: Any) -> Any:
        ctx.set_materialize_grads(False)
        out = forward(ctx, *args)
        ctx.kinds = [(t.shape, t.dtype, t.device) for t in out] if isinstance(out, tuple) else ()
        return out

    return run


def _passing(backward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> Any:
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        if ctx.kinds:
            kinds = zip(grads, ctx.kinds)
            grads = tuple(torch.zeros(s, dtype=t, device=d) if g is None else g for g, (s, t, d) in kinds)
        return backward(ctx, *grads)

    return run
