"""What is trained on: synthetic images, CIFAR-10, image folders, whole slides and text, read box by box. This file is
the room's public surface, loaded lazily.

Knows files, pixels, tokens and samples; nothing of ranks or models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halocline.data.augment import Augment
    from halocline.data.augment import parse as parse_augment
    from halocline.data.dataset import IGNORED, Dataset, Spec, Subset
    from halocline.data.images import Images, Source
    from halocline.data.loader import Loader, Reads, Step
    from halocline.data.opening import open_dataset
    from halocline.data.picture import BadFile
    from halocline.data.sampler import Sampler

_HOMES = {
    "IGNORED": ("dataset", "IGNORED"),
    "Augment": ("augment", "Augment"),
    "BadFile": ("picture", "BadFile"),
    "Dataset": ("dataset", "Dataset"),
    "Images": ("images", "Images"),
    "Loader": ("loader", "Loader"),
    "Reads": ("loader", "Reads"),
    "Sampler": ("sampler", "Sampler"),
    "Source": ("images", "Source"),
    "Spec": ("dataset", "Spec"),
    "Step": ("loader", "Step"),
    "Subset": ("dataset", "Subset"),
    "open_dataset": ("opening", "open_dataset"),
    "parse_augment": ("augment", "parse"),
}

__all__ = [
    "IGNORED",
    "Augment",
    "BadFile",
    "Dataset",
    "Images",
    "Loader",
    "Reads",
    "Sampler",
    "Source",
    "Spec",
    "Step",
    "Subset",
    "open_dataset",
    "parse_augment",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value  # the next access finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
