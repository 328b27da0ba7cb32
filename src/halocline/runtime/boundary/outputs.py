"""What a stage's layers may return, so that it can cross a boundary and arrive as it left; refuses what cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from halocline.runtime.boundary.crossing import Crossing
from halocline.runtime.layers import Layers


def as_tensors(value: Any, name: str) -> list[Tensor]:
    """What a layer returned, as a list of tensors."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)) and value and all(isinstance(t, Tensor) for t in value):
        return list(value)
    raise ValueError(
        f"layer {name} returned {describe(value)}: a layer must return a tensor or a tuple of tensors, so that it can "
        f"cross a stage boundary"
    )


def outputs_of(value: Any, name: str) -> list[Tensor]:
    """The same for a stage's last layer, whose next one gets a tensor, or a tuple of several."""
    tensors = as_tensors(value, name)
    if len(tensors) == 1 and not isinstance(value, Tensor):
        raise ValueError(
            f"layer {name} returned {describe(value)}, and the next stage would be given the tensor itself: return the "
            f"tensor, or several"
        )
    return tensors


SAME = {torch.float64: 1e-8, torch.float32: 1e-3}
"""How far, of the largest value, two runs of the same layers may be apart: a GPU adds up in another order each time."""


def require_same_again(sent: Sequence[Tensor], again: Sequence[Tensor], who: str) -> None:
    """Refuse a stage whose recomputation makes something else than what was sent."""
    for first, second in zip(sent, again):
        a, b = (
            torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (first.detach(), second.detach())
        )
        a, b = a.double(), b.double()
        most = SAME.get(first.dtype, 0.1) * a.nan_to_num().abs().max().item() if a.numel() else 0.0
        if a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=most, equal_nan=True):
            raise ValueError(
                f"{who} make something else of a microbatch when they recompute it, which happens with gradients (as "
                f"torch.is_grad_enabled() tells a layer) and later: use recompute = false for that stage, or let its "
                f"forward depend on neither"
            )


def input_of(tensors: Sequence[Tensor], crossings: Sequence[Crossing]) -> Any:
    """What a stage's first layer is given."""
    if len(tensors) == 1:
        return tensors[0]
    return list(tensors) if crossings[0].listed else tuple(tensors)


def twins_in(tensors: Sequence[Tensor]) -> list[bool]:
    """Which tensors lie in memory where another does, as one that is returned twice: a write to it could change both.
    Those that lie between each other's numbers, as the halves of each row do, have none in common."""
    places = [(t.untyped_storage()._cdata, *_reach(t)) for t in tensors]

    def meet(a: int, b: int) -> bool:
        (one, begin, end), (other, start, stop) = places[a], places[b]
        if a == b or one != other or end <= start or stop <= begin:
            return False
        return begin == start or not _apart(tensors[a], tensors[b])

    return [any(meet(a, b) for b in range(len(tensors))) for a in range(len(tensors))]


def _reach(tensor: Tensor) -> tuple[int, int]:
    """Where in its memory a tensor begins and ends."""
    begin = int(tensor.storage_offset())
    steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return begin, begin + int(steps) + 1 if tensor.numel() else begin


def _apart(a: Tensor, b: Tensor) -> bool:
    """Whether two views with equal strides stand side by side in each row of what they are views of."""
    if a.stride() != b.stride():
        return False
    if a.storage_offset() > b.storage_offset():
        a, b = b, a
    strides, away = a.stride(), b.storage_offset() - a.storage_offset()
    for row in {s for s in strides if s}:
        if all(s % row == 0 for s in strides if s >= row):
            own, its = (sum((n - 1) * s for n, s in zip(t.shape, strides) if s < row) for t in (a, b))
            if own < away % row and away % row + its < row:
                return True
    return False


def require_no_twin(layers: Layers, written: Sequence[Crossing]) -> None:
    """Refuse layers that write to inputs that on one device share memory with others, and arrive apart."""
    if any(crossing.twin for crossing in written):
        raise ValueError(
            f"layers {layers[0][0]} to {layers[-1][0]} write to an input that the stage before returned twice, or "
            f"beside another view of the same numbers: on one device both change, and here one; use an operation that "
            f"is not in place, or return a clone"
        )


def describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        kinds = ("Tensor" if isinstance(part, Tensor) else type(part).__name__ for part in value)
        return f"a {type(value).__name__} of {', '.join(kinds) or 'nothing'}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
