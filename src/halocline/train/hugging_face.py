"""Weights from and to Hugging Face's layout, through the models that know it. Keeps the rest of the room unaware."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from halocline.models.model import Model


def load(directory: str, model: Model) -> Iterator[tuple[str, Tensor]]:
    """The weights in a directory, by our names."""
    found: Iterator[tuple[str, Tensor]] = _layouts().load(directory, model)
    return found


def save(directory: str, model: Model, tensors: Iterable[tuple[str, Tensor]]) -> None:
    _layouts().save(directory, model, tensors)


def _layouts() -> Any:
    from halocline.models import hf

    return hf
