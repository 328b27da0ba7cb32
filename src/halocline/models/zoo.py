"""The table of models: names and where the function that makes each stands.

Knows no torch, so that it loads at once.
"""

from __future__ import annotations

import difflib
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A line of the table."""

    address: str
    """package.module:callable; it returns a `Model`."""
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    """What the callable is given beside what the user says."""


ZOO: dict[str, Entry] = {
    "small-cnn": Entry("halocline.models.small:small_cnn"),
    "small-mlp": Entry("halocline.models.small:small_mlp"),
}


def find(name: str) -> Entry:
    """A model of the table, or one that stands elsewhere, given as `package.module:callable`."""
    if name in ZOO:
        return ZOO[name]
    if ":" in name:
        return Entry(name)
    near = difflib.get_close_matches(name, ZOO, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "halocline models lists them; or write package.module:callable"
    raise ValueError(f"{name!r} is not a model: {hint}")
