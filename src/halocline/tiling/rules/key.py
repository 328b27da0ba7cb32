"""What torch reads an index as: one item per dim, whether it came as a tuple, a list, numpy's numbers or a range.

Knows nothing of tiles; what the items mean is index.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def items_of(key: Any) -> list[Any]:
    """The items of an index: numbers, slices, None, ... and tensors; those without dims are masks of one value."""
    return [_item(i) for i in (key if _is_tuple(key) else (key,))]


def _is_tuple(key: Any) -> bool:
    """Whether a sequence is read as a tuple: a tuple is, and a short list that holds more than numbers.

    So does torch still, with a warning (treatSequenceAsTuple), as numpy once did.
    """
    if isinstance(key, tuple):
        return True
    if not isinstance(key, Sequence) or isinstance(key, str) or len(key) >= 32:
        return False
    return any(i is None or i is Ellipsis or isinstance(i, (slice, Tensor)) or _is_sequence(i) for i in key)


def _is_sequence(item: Any) -> bool:
    return isinstance(item, Sequence) or (hasattr(item, "__array__") and hasattr(item, "__setitem__"))


def _item(item: Any) -> Any:
    if isinstance(item, bool):
        return torch.tensor(item)
    if item is None or item is Ellipsis or isinstance(item, (int, slice)):
        return item
    if isinstance(item, Sequence) and not isinstance(item, str):
        item = torch.tensor(item)
        item = item if item.numel() else item.long()  # an empty list has no dtype of its own
    elif not isinstance(item, Tensor) and hasattr(item, "__array__"):  # of numpy
        item = torch.as_tensor(item)
    if isinstance(item, Tensor) and item.ndim == 0 and item.dtype not in (torch.bool, torch.uint8):
        return int(item)
    return item
