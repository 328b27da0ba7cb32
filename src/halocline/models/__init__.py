"""What is trained: plain single-device models as sequences of layers. They know nothing of ranks, tiles or plans.

A model is found by its name here, or by where it stands, as `package.module:callable`.
"""

from __future__ import annotations

import difflib

ZOO = {
    "small-cnn": "halocline.models.small:small_cnn",
    "small-mlp": "halocline.models.small:small_mlp",
}
"""Name -> where the function that returns its layers stands."""


def address(name: str) -> str:
    """Where a model stands: the zoo's, or a `package.module:callable` as it is."""
    if name in ZOO:
        return ZOO[name]
    if ":" in name:
        return name
    near = difflib.get_close_matches(name, ZOO, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(ZOO)}, or package.module:callable"
    raise ValueError(f"{name!r} is not a model: {hint}")
