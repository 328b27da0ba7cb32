"""Image files in folders, one folder per class, or images with masks: what lies where, in an order that is the same
everywhere. Opens no file.

    classes      DATA[/train | /val] / CLASS / ... / image.png
    masks        DATA[/train | /val] / images / ... / a.tif    and    masks / ... / a.png
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from halocline.data.dataset import EVALUATION, TRAIN
from halocline.data.picture import SUFFIXES, is_picture

SPLIT_FOLDERS = {TRAIN: ("train", "training"), EVALUATION: ("val", "valid", "validation", "evaluation", "test")}
IMAGES, MASKS = "images", "masks"


@dataclass(frozen=True)
class Listing:
    """The files of a dataset."""

    images: tuple[str, ...]
    labels: tuple[int, ...]
    """The class of each image; all 0 where masks tell."""
    masks: tuple[str, ...] = ()
    """The mask of each image; empty where folders tell."""
    classes: tuple[str, ...] = ()
    """The folders' names, in the order of their numbers."""


def split_folder(root: Path, split: str) -> tuple[Path, bool]:
    """Where the files of a split lie, and whether the data is split already."""

    def first(names: tuple[str, ...]) -> Path | None:
        return next((root / name for name in names if (root / name).is_dir()), None)

    train, evaluation = (first(SPLIT_FOLDERS[name]) for name in (TRAIN, EVALUATION))
    if train is None:
        return root, False
    if evaluation is None:
        return train, False
    return (train if split == TRAIN else evaluation), True


def list_classes(root: Path, split: str) -> tuple[Listing, bool]:
    """The images of class folders, and whether the data is split already. Classes are numbered by name."""
    _must_be_folder(root)
    folder, is_split = split_folder(root, split)
    names = _subfolders(split_folder(root, TRAIN)[0])
    if not names:
        raise ValueError(
            f"{folder} holds no class folders: put the images in {folder}/CLASS/, or for segmentation in "
            f"{folder}/{IMAGES}/ and {folder}/{MASKS}/"
        )
    unknown = sorted(set(_subfolders(folder)) - set(names))
    if unknown:
        raise ValueError(f"{folder / unknown[0]} is a class without training images: it has no folder to train on")
    images: list[str] = []
    labels: list[int] = []
    for number, name in enumerate(names):
        files = _pictures(folder / name)
        if not files and not is_split:
            raise ValueError(f"{folder / name} holds no images: bring {', '.join(SUFFIXES)}, or remove the folder")
        images += files
        labels += [number] * len(files)
    if not images:
        raise ValueError(f"{folder} holds no images: bring {', '.join(SUFFIXES)}")
    return Listing(tuple(images), tuple(labels), classes=tuple(names)), is_split


def list_masks(root: Path, split: str) -> tuple[Listing, bool]:
    """Images with the mask of the same name, and whether the data is split already."""
    _must_be_folder(root)
    folder, is_split = split_folder(root, split)
    for part in (IMAGES, MASKS):
        if not (folder / part).is_dir():
            raise ValueError(
                f"{folder} has no folder {part}: put the images in {folder}/{IMAGES}/ and for each a mask of the same "
                f"name in {folder}/{MASKS}/"
            )
    images = _pictures(folder / IMAGES)
    if not images:
        raise ValueError(f"{folder / IMAGES} holds no images: bring {', '.join(SUFFIXES)}")
    known = {_stem(path, folder / MASKS): path for path in reversed(_pictures(folder / MASKS))}
    masks = [known.get(_stem(path, folder / IMAGES), "") for path in images]
    return Listing(tuple(images), (0,) * len(images), tuple(masks)), is_split


def _must_be_folder(root: Path) -> None:
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}: give the data's folder as --datapath")


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _pictures(folder: Path) -> list[str]:
    """All image files below a folder, in order of their names."""
    if not folder.is_dir():
        return []
    found: list[str] = []
    for here, folders, names in os.walk(folder, followlinks=True):
        home = Path(here).resolve()
        # Hidden ones are passed over, and so are links to a folder that they lie in: they would never end.
        folders[:] = [f for f in folders if not f.startswith(".") and not home.is_relative_to((home / f).resolve())]
        found += [str(Path(here, name)) for name in names if is_picture(Path(name))]
    return sorted(found)


def _stem(path: str, folder: Path) -> str:
    """A file's name below a folder, without any suffix (`a.ome.tif` is `a`) and without `_mask`."""
    relative = Path(path).relative_to(folder)
    name = relative.name
    while Path(name).suffix.lower() in (*SUFFIXES, ".ome"):
        name = Path(name).stem
    return str(relative.parent / name.removesuffix("_mask"))
