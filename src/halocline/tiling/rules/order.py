"""Sorting, counting and looking up values: sort, topk, searchsorted, histograms and their kin.

Along channels each pixel is sorted by itself; along pixels whole lines are (lines.py). The largest few of a line of
pixels, which have no place in the image any more, are plain, and so are counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.gathered import whole
from halocline.tiling.rules.lines import each, on_lines
from halocline.tiling.rules.shape import from_front
from halocline.tiling.tensor import TileTensor, rule, untiled


def _no_out(function: Any, input: Any, kwargs: dict[str, Any]) -> None:
    if kwargs.get("out") is not None:
        raise untiled(function, (input,), kwargs, why="out= has no rule; assign the result instead")


def _sort(function: Callable[..., Any]) -> None:
    @rule(function)
    def sort(input: TileTensor, dim: Any = -1, descending: bool = False, **kwargs: Any) -> Any:
        _no_out(function, input, kwargs)
        if isinstance(dim, bool):  # sort(x, stable) has no positional form of its own
            raise untiled(function, (input, dim), kwargs, why="give dim= and descending= by name")
        return on_lines(lambda line: function(line, dim=dim, descending=descending, **kwargs), input, (dim,))


for _function in (torch.sort, Tensor.sort, torch.argsort, Tensor.argsort):
    _sort(_function)


@rule(torch.msort, Tensor.msort)
def msort(input: TileTensor, **kwargs: Any) -> Any:
    _no_out(torch.msort, input, kwargs)
    return on_lines(torch.msort, input, (0,))


@rule(torch.topk, Tensor.topk)
def topk(input: TileTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, **kwargs: Any) -> Any:
    _no_out(torch.topk, input, kwargs)
    if from_front(dim, input.ndim) in input.spec.positions(input.ndim):
        return torch.topk(input.full(), k, dim, largest, sorted)
    return each(lambda out: TileTensor.wrap(out, input.spec), torch.topk(input.local, k, dim, largest, sorted))


# ------------------------------------------------------------------------------------------------------- looking up


@rule(torch.bucketize)
def bucketize(input: Tensor, boundaries: Tensor, **kwargs: Any) -> TileTensor:
    _no_out(torch.bucketize, input, kwargs)
    if not isinstance(input, TileTensor) or isinstance(boundaries, TileTensor):
        raise untiled(torch.bucketize, (input, boundaries), why="its boundaries must be plain")
    return TileTensor.wrap(torch.bucketize(input.local, boundaries, **kwargs), input.spec)


@rule(torch.searchsorted)
def searchsorted(sorted_sequence: Tensor, input: Any, **kwargs: Any) -> TileTensor:
    _no_out(torch.searchsorted, input, kwargs)
    if not isinstance(input, TileTensor) or isinstance(sorted_sequence, TileTensor) or sorted_sequence.ndim != 1:
        raise untiled(torch.searchsorted, (sorted_sequence, input), why="its sequence must be plain and have one dim")
    return TileTensor.wrap(torch.searchsorted(sorted_sequence, input.local, **kwargs), input.spec)


# --------------------------------------------------------------------------------------------------------- counting


@rule(torch.histc, Tensor.histc)
def histc(input: TileTensor, bins: int = 100, min: Any = 0, max: Any = 0, **kwargs: Any) -> Tensor:
    """Each rank counts the pixels it owns; the bins' ends, if they are not given, are the whole image's extremes."""
    _no_out(torch.histc, input, kwargs)
    values = input.detach()
    assert isinstance(values, TileTensor)
    if min == max:
        min, max = torch.amin(values).item(), torch.amax(values).item()
        if min == max:
            min, max = min - 1, max + 1
    owned = values.owned
    counts = torch.histc(owned, bins, min, max) if owned.numel() else owned.new_zeros(bins)
    return input.spec.exchanger.all_reduce(counts)


def _counted(function: Callable[..., Any]) -> None:
    @rule(function)
    def count(*args: Any, **kwargs: Any) -> Any:
        return function(*map(whole, args), **{name: whole(value) for name, value in kwargs.items()})


for _counter in (torch.bincount, Tensor.bincount, torch.histogram, Tensor.histogram):
    _counted(_counter)
