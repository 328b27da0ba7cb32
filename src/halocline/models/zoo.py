"""The table of models: names and where the function that makes each stands.

Knows no torch, so that it loads at once.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A line of the table."""

    address: str
    """package.module:callable; it returns a `Model`."""
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    """What the callable is given beside what the user says."""
    note: str = ""
    """What to know of it, e.g. where its size differs from the published one."""


_BERT, _GPT = "halocline.models.bert:bert", "halocline.models.gpt:gpt"
_T5, _BLOOM = "halocline.models.t5:t5", "halocline.models.bloom:bloom"
_RESNET = "halocline.models.resnet:imagenet_resnet"

ZOO: dict[str, Entry] = {
    "small-cnn": Entry("halocline.models.small:small_cnn"),
    "small-mlp": Entry("halocline.models.small:small_mlp"),
    "amoebanet-d": Entry("halocline.models.amoebanet:amoebanet_d"),
    "unet": Entry("halocline.models.unet:unet"),
    **{f"resnet-v1-{n}": Entry("halocline.models.resnet:resnet_v1", {"depth": n}) for n in (20, 56, 110)},
    **{f"resnet-v2-{n}": Entry("halocline.models.resnet:resnet_v2", {"depth": n}) for n in (20, 56, 110)},
    **{f"resnet{n}": Entry(_RESNET, {"depth": n}) for n in (18, 34, 50, 101, 152)},
    **{f"wide-resnet{n}_{k}": Entry(_RESNET, {"depth": n, "width": k}) for n in (50, 101) for k in (2, 4, 8)},
    "bert-base-uncased": Entry(
        _BERT,
        {"layers": 12, "hidden": 768, "heads": 12},
        "Perseus lists 109.43 M, which is this without the biases of the blocks' linear layers",
    ),
    "bert-large-uncased": Entry(
        _BERT,
        {"layers": 24, "hidden": 1024, "heads": 16},
        "Perseus lists 334.95 M, which is this without the biases of the blocks' linear layers",
    ),
    "bert-huge-uncased": Entry(_BERT, {"layers": 24, "hidden": 2048, "heads": 16}),
    "gpt3-small": Entry(_GPT, {"layers": 12, "hidden": 768, "heads": 12}),
    "gpt3-medium": Entry(_GPT, {"layers": 24, "hidden": 1024, "heads": 16}),
    "gpt3-large": Entry(_GPT, {"layers": 24, "hidden": 1536, "heads": 16}),
    "gpt3-xl": Entry(_GPT, {"layers": 24, "hidden": 2048, "heads": 16}),
    "gpt3-2.7b": Entry(_GPT, {"layers": 32, "hidden": 2560, "heads": 32}),
    "gpt3-6.7b": Entry(_GPT, {"layers": 32, "hidden": 4096, "heads": 32}),
    "gpt3-13b": Entry(_GPT, {"layers": 40, "hidden": 5120, "heads": 40}),
    "gpt3-39b": Entry(
        _GPT,
        {"layers": 48, "hidden": 8192, "heads": 64, "tied": False},
        "the head has a table of its own, as in the size Perseus lists",
    ),
    "gpt3-80b": Entry(
        _GPT,
        {"layers": 72, "hidden": 9600, "heads": 64, "tied": False},
        "the head has a table of its own; Perseus lists 80600.16 M, which is this without positions and final norm",
    ),
    "gpt3-175b": Entry(_GPT, {"layers": 96, "hidden": 12288, "heads": 96}),
    "t5-small": Entry(_T5, {"layers": 6, "hidden": 512, "heads": 8}),
    "t5-base": Entry(_T5, {"layers": 12, "hidden": 768, "heads": 12}),
    "t5-large": Entry(_T5, {"layers": 24, "hidden": 1024, "heads": 16}),
    "t5-3b": Entry(_T5, {"layers": 24, "hidden": 1024, "heads": 32, "wide": 4}),
    "t5-11b": Entry(_T5, {"layers": 24, "hidden": 1024, "heads": 128, "wide": 16}),
    "bloom-3b": Entry(_BLOOM, {"layers": 30, "hidden": 2560, "heads": 32}),
}


_STEP = {1: 6, 2: 9}
"""Version of a CIFAR ResNet -> what a block in each of the three groups adds to the depth."""


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


def blocks_of(version: int, depth: int) -> int:
    """The blocks in each of the three groups: n of a depth of 6n+2 (v1) or 9n+2 (v2)."""
    step = _STEP[version]
    n, rest = divmod(depth - 2, step)
    if n < 1 or rest:
        below = max(1, n)
        near = f"{below * step + 2}" + (f" or {(below + 1) * step + 2}" if n >= 1 else "")
        raise ValueError(f"a ResNet v{version} of depth {depth} does not exist: its depth is {step}n+2; use {near}")
    return n
