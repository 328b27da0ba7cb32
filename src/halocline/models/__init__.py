"""What is trained: plain single-device models as sequences of layers. They know nothing of ranks, tiles or plans.

A model is found by its name here, or by where it stands, as `package.module:callable`; `models.model.make` makes it.
"""

from __future__ import annotations

from halocline.models.zoo import ZOO, Entry, find

__all__ = ["ZOO", "Entry", "find"]
