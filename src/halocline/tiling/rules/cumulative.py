"""Along a line: running sums, products and extremes, differences, gradients and integrals.

Running values need whole lines (lines.py). Differences are of neighbours: pixels move by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.lines import on_lines
from halocline.tiling.rules.shape import from_front
from halocline.tiling.tensor import TileTensor, rule, untiled


def _running(name: str) -> None:
    function: Callable[..., Any] = getattr(torch, name)

    @rule(function, getattr(Tensor, name))
    def running(input: TileTensor, dim: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("out") is not None:
            raise untiled(function, (input, dim), kwargs, why="out= has no rule; assign the result instead")
        along = kwargs.pop("axis", dim)
        return on_lines(lambda whole: function(whole, along, **kwargs), input, (along,))


for _name in "cumsum cumprod logcumsumexp cummax cummin".split():
    _running(_name)


def _written(name: str) -> None:
    function = getattr(Tensor, name)

    @rule(function)
    def write(input: TileTensor, dim: int, **kwargs: Any) -> Tensor:
        # Of a copy: the backward needs the values before they are overwritten.
        return input.copy_(getattr(torch, name[:-1])(input.clone(), dim, **kwargs))


_written("cumsum_")
_written("cumprod_")


# ---------------------------------------------------------------------------------------------- differences, integrals


def _narrowed(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    return torch.narrow(x, dim, start, stop - start)


def _neighbours(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """All but the first, and all but the last, of a dim."""
    size = x.shape[dim]
    return _narrowed(x, dim, 1, size), _narrowed(x, dim, 0, size - 1)


@rule(torch.diff, Tensor.diff)
def diff(
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    if out is not None:
        raise untiled(torch.diff, (input, n, dim), why="out= has no rule; assign the result instead")
    if n == 0:  # of which torch does not look at the rest
        return input.clone()
    parts = [t for t in (prepend, input, append) if t is not None]
    whole = torch.cat(parts, dim) if len(parts) > 1 else input
    if not 0 < n < whole.shape[dim]:
        raise untiled(torch.diff, (input, n, dim), why=f"{n} differences of {whole.shape[dim]} values have no rule")
    for _ in range(n):
        later, earlier = _neighbours(whole, dim)
        whole = torch.logical_xor(later, earlier) if whole.dtype is torch.bool else later - earlier
    return whole


@rule(torch.gradient)
def gradient(input: TileTensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> list[Tensor]:
    """One estimate per dim; `spacing` is a number, or per dim a number or the coordinates of its values."""
    dims = tuple(range(input.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    steps: Sequence[Any] = spacing if isinstance(spacing, (tuple, list)) else (spacing,) * len(dims)
    if (isinstance(spacing, Tensor) and len(dims) > 1) or len(steps) != len(dims) or any(map(_unfit, steps)):
        raise untiled(torch.gradient, (input, spacing, dim), why="give a plain spacing without a gradient per dim")

    def along(d: int, step: Any) -> Tensor:
        def estimate(whole: Tensor) -> Tensor:
            given = {} if step is None else {"spacing": [step.to(whole.device)] if isinstance(step, Tensor) else step}
            return torch.gradient(whole, dim=d, edge_order=edge_order, **given)[0]

        return on_lines(estimate, input, (d,))

    return [along(d, step) for d, step in zip(dims, steps)]


def _unfit(step: Any) -> bool:
    return isinstance(step, Tensor) and (isinstance(step, TileTensor) or step.requires_grad)


def _trapezoids(y: Tensor, x: Tensor | None, dx: Any, dim: int) -> Tensor:
    """The area under each piece of the line between two neighbours."""
    later, earlier = _neighbours(y, dim)
    if x is None:
        step = 1 if dx is None else dx.item() if isinstance(dx, Tensor) else dx
        return (later + earlier) * step / 2
    if x.ndim == 1 and not isinstance(x, TileTensor):
        x = x.view(-1, *(1,) * (y.ndim - 1 - from_front(dim, y.ndim)))
        return (later + earlier) * torch.diff(x, dim=0) / 2
    return (later + earlier) * torch.diff(x, dim=dim) / 2


@rule(torch.trapezoid, torch.trapz)
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    return _trapezoids(y, x, dx, dim).sum(dim)


@rule(torch.cumulative_trapezoid)
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    return torch.cumsum(_trapezoids(y, x, dx, dim), dim)
