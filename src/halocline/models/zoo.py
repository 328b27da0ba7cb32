"""The table of models: names and where the function that makes each stands.

Knows no torch, so that it loads at once.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple

from halocline.models.depth import blocks_of


class Entry(NamedTuple):
    """A line of the table."""

    address: str
    """package.module:callable; it returns a `Model`."""
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    """What the callable is given beside what the user says."""


_RESNET = "halocline.models.imagenet_resnet:imagenet_resnet"

ZOO: dict[str, Entry] = {
    "small-cnn": Entry("halocline.models.small:small_cnn"),
    "small-mlp": Entry("halocline.models.small:small_mlp"),
    "amoebanet-d": Entry("halocline.models.amoebanet:amoebanet_d"),
    "unet": Entry("halocline.models.unet:unet"),
    **{f"resnet-v1-{n}": Entry("halocline.models.resnet:resnet_v1", {"depth": n}) for n in (20, 32, 44, 56, 110)},
    **{f"resnet-v2-{n}": Entry("halocline.models.resnet:resnet_v2", {"depth": n}) for n in (20, 56, 110, 164, 1001)},
    **{f"resnet{n}": Entry(_RESNET, {"depth": n}) for n in (18, 34, 50, 101, 152)},
    **{f"wide-resnet{n}_{k}": Entry(_RESNET, {"depth": n, "width": k}) for n in (50, 101) for k in (2, 4, 8)},
}


def find(name: str) -> Entry:
    """A model of the table, or one that stands elsewhere, given as `package.module:callable`."""
    if name in ZOO:
        return ZOO[name]
    if ":" in name:
        return Entry(name)
    resnet = re.fullmatch(r"resnet-v([12])-(\d{1,6})", name)
    if resnet:  # of any depth that exists
        version, depth = int(resnet[1]), int(resnet[2])
        blocks_of(version, depth)
        return Entry(f"halocline.models.resnet:resnet_v{version}", {"depth": depth})
    near = difflib.get_close_matches(name, ZOO, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "halocline models lists them; or write package.module:callable"
    raise ValueError(f"{name!r} is not a model: {hint}")
