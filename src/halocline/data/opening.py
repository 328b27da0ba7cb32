"""The one way to open data: from what a command line says to a `Dataset`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from halocline.data.augment import Augment
from halocline.data.cifar import CHANNELS, EDITIONS, SIDE, Cifar, Edition, find_files, no_mask, other_way
from halocline.data.dataset import SPLITS, TRAIN, Dataset, Subset, chosen, further
from halocline.data.files import STOP, Files
from halocline.data.folder import list_classes, list_masks
from halocline.data.generated import Lesions, Synthetic
from halocline.data.images import Images, Source
from halocline.data.objective import OBJECTIVES
from halocline.data.text import open_corpus

FOLDER, SYNTHETIC, LESION = "folder", "synthetic", "lesion"
KINDS = (FOLDER, *EDITIONS, SYNTHETIC, LESION)

CLASSIFICATION, SEGMENTATION = "classification", "segmentation"


def open_dataset(
    kind: str,
    datapath: str | Path | None = None,
    *,
    task: str = CLASSIFICATION,
    classes: int,
    channels: int = 3,
    image: tuple[int, int] | None = None,
    samples: int = 1024,
    seed: int = 0,
    split: str = TRAIN,
    evaluation_fraction: float = 0.1,
    bad: str = STOP,
    known_bad: Collection[str] | None = None,
    level: int = 0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    augment: Augment | None = None,
    sequence: int = 0,
    tokenizer: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """The training or the evaluation split of some data.

    `kind` is folder (images, or text, at `datapath`), cifar10, cifar100, synthetic or lesion. Data that is not split
    already is split by chance, `evaluation_fraction` of it for evaluation; generated data has `samples` for training
    and that fraction more for evaluation. Only training images are augmented. `task` says what a sample is: an image
    with a class, an image with a mask, or tokens (`sequence` of them) with an objective.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of data: use {', '.join(KINDS)}")
    if split not in SPLITS:
        raise ValueError(f"{split!r} is not a split: use {' or '.join(SPLITS)}")
    total = samples + further(samples, evaluation_fraction)
    generated = range(samples) if split == TRAIN else range(samples, total)
    if task in OBJECTIVES:
        if kind not in (FOLDER, SYNTHETIC):
            raise ValueError(f"{kind} data is images, and {task} is asked of tokens: use folder or synthetic")
        texts, is_split = open_corpus(
            None if kind == SYNTHETIC else _given(datapath),
            objective=task,
            sequence=sequence,
            vocabulary=classes,
            tokenizer=tokenizer,
            split=split,
            samples=total,
            seed=seed,
        )
        if kind == SYNTHETIC:
            return Subset(texts, generated)
        return texts if is_split else Subset(texts, chosen(len(texts), split, evaluation_fraction, seed).tolist())
    if task not in (CLASSIFICATION, SEGMENTATION):
        raise ValueError(f"{task!r} is not a task: use {', '.join((CLASSIFICATION, SEGMENTATION, *OBJECTIVES))}")
    segmentation = task == SEGMENTATION
    change = augment if split == TRAIN else None
    is_split = False
    source: Source
    if kind == FOLDER:
        root = _given(datapath)
        try:
            listing, is_split = list_masks(root, split) if segmentation else list_classes(root, split)
        except ValueError as error:
            raise ValueError(f"{error}{other_way(root)}") from None
        source = Files(
            listing,
            channels=channels,
            classes=classes,
            level=level,
            image=image,
            pad=change.pad if change else 0,
            bad=bad,
            known_bad=known_bad,
            progress=progress,
        )
        image = source.image
    elif kind in EDITIONS:
        edition = EDITIONS[kind]
        _check_cifar(edition, segmentation, channels, classes)
        paths, is_split = find_files(_given(datapath), edition, split)
        image = image or (SIDE, SIDE)
        source = Cifar(paths, edition, image)
    elif kind == SYNTHETIC:
        image = image or (32, 32)
        source = Synthetic(total, image, channels, classes, seed, segmentation)
    else:
        if change and (change.flip or change.upend or change.rotate):
            raise ValueError(
                "flips and turns make one kind of lesion look like another: use colour, or no augmentation"
            )
        image = image or (512, 512)
        source = Lesions(total, image, channels, classes, seed, segmentation)
    assert image is not None
    images = Images(source, image=image, segmentation=segmentation, augment=change, seed=seed, mean=mean, std=std)
    if kind in (SYNTHETIC, LESION):
        return Subset(images, generated)
    return images if is_split else Subset(images, chosen(len(images), split, evaluation_fraction, seed).tolist())


def _given(datapath: str | Path | None) -> Path:
    if datapath is None:
        raise ValueError("this data lies in files: give their folder as --data DIR")
    return Path(datapath).expanduser()


def _check_cifar(edition: Edition, segmentation: bool, channels: int, classes: int) -> None:
    if segmentation:
        raise ValueError(no_mask(edition))
    if channels != CHANNELS:
        raise ValueError(f"{edition.name} has {CHANNELS} channels, and {channels} are asked for: use {CHANNELS}")
    if classes < edition.classes:
        raise ValueError(
            f"{edition.name} has {edition.classes} classes, the model {classes}: use --num-classes {edition.classes}"
        )
