"""Modules as they were: a forward without data must leave nothing behind in them. A mask or a table that a layer makes
once and keeps would have no values when the data comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def untouched(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Whatever modules set within (attributes, buffers, entries of their dicts) is as before afterwards."""
    states = [module.__dict__ for module in modules]
    holders = [*states, *(value for state in states for value in state.values() if isinstance(value, dict))]
    kept = [(holder, dict(holder)) for holder in holders]
    try:
        yield
    finally:
        for holder, content in kept:
            holder.clear()
            holder.update(content)
