"""What a layer may hand on over a stage boundary: tensors, in a shape that arrives as it left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from halocline.runtime.boundary import Crossing


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


def handed_on(value: Any, name: str) -> list[Tensor]:
    """The same for a stage's last layer, whose next one gets a tensor, or a tuple of several."""
    tensors = as_tensors(value, name)
    if len(tensors) == 1 and not isinstance(value, Tensor):
        raise ValueError(
            f"layer {name} returned {describe(value)}, and the next stage would be given the tensor itself: return the "
            f"tensor, or several"
        )
    return tensors


def twins_in(tensors: Sequence[Tensor]) -> list[bool]:
    """Which tensors begin where another does, as one that is returned twice: a write to it would change both."""
    begins = [(t.untyped_storage()._cdata, t.storage_offset()) for t in tensors]
    return [begins.count(begin) > 1 for begin in begins]


def require_no_twin(layers: Sequence[tuple[str, nn.Module]], written: Sequence[Crossing]) -> None:
    """Refuse layers that write to inputs which on one device are one with others, and arrive as two."""
    if any(crossing.twin for crossing in written):
        raise ValueError(
            f"layers {layers[0][0]} to {layers[-1][0]} write to an input that the stage before returned twice: on one "
            f"device both change, and here one; use an operation that is not in place, or return a clone"
        )


def describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {', '.join(map(_kind, value)) or 'nothing'}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _kind(value: Any) -> str:
    return "Tensor" if isinstance(value, Tensor) else type(value).__name__
