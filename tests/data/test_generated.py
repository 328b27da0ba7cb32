"""Generated images: any box without the rest, the same in every process, with something to learn."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline.data import chance, open_dataset
from halocline.data.generated import Lesions, Synthetic
from halocline.data.images import Source

SOURCES: list[Source] = [
    Synthetic(4, (61, 83), 3, 7, seed=1),
    Synthetic(4, (61, 83), 1, 3, seed=2, segmentation=True),
    Lesions(4, (61, 83), 3, 2, seed=1),
    Lesions(4, (61, 83), 1, 4, seed=1, segmentation=True),
]


@settings(max_examples=200, deadline=None)
@given(
    source=st.sampled_from(SOURCES),
    sample=st.integers(0, 3),
    rows=st.lists(st.integers(0, 61), min_size=2, max_size=2, unique=True).map(sorted),
    columns=st.lists(st.integers(0, 83), min_size=2, max_size=2, unique=True).map(sorted),
)
def test_a_box_is_that_part_of_the_whole(source: Source, sample: int, rows: list[int], columns: list[int]) -> None:
    box = ((rows[0], rows[1]), (columns[0], columns[1]))
    part = slice(*rows), slice(*columns)
    whole = ((0, 61), (0, 83))
    np.testing.assert_array_equal(source.pixels(sample, box), source.pixels(sample, whole)[(slice(None), *part)])
    np.testing.assert_array_equal(source.mask(sample, box), source.mask(sample, whole)[part])


@pytest.mark.parametrize("source", SOURCES)
def test_values_are_fractions(source: Source) -> None:
    pixels = source.pixels(2, ((0, 61), (0, 83)))
    assert pixels.dtype == np.float32 and 0 <= pixels.min() < 0.45 and 0.5 < pixels.max() <= 1
    labels = {source.label(sample) for sample in range(4)}
    assert labels <= set(range(source.classes))


def test_chance_is_the_same_in_every_process() -> None:
    """Written out, so that runs of other days and machines can be resumed."""
    assert chance.key(1, 2, 3) == 0x8DB38CC6B7A8058B
    assert chance.permutation(6, 7).tolist() == [0, 3, 2, 1, 5, 4]
    code = "from halocline.data import chance; print(chance.key(1, 2, 3), chance.bytes_of(5, (3, 5), (1, 4)).tolist())"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert printed.stdout == f"{chance.key(1, 2, 3)} {chance.bytes_of(5, (3, 5), (1, 4)).tolist()}\n"


def test_chance_is_even() -> None:
    noise = chance.bytes_of(3, (0, 256), (0, 256))
    counts = np.bincount(noise.reshape(-1), minlength=256)
    assert counts.min() > 180 and counts.max() < 340  # 256 each, six standard deviations
    shifted = np.corrcoef(noise[:, 1:].reshape(-1), noise[:, :-1].reshape(-1))[0, 1]
    assert abs(shifted) < 0.03
    draws = [chance.below(10, 1, sample) for sample in range(2000)]
    assert min(np.bincount(draws)) > 130
    assert 0.45 < np.mean([chance.uniform(9, sample) for sample in range(2000)]) < 0.55


def test_words_are_keys() -> None:
    assert chance.words(chance.key(4, 5), np.arange(3)).tolist() == [chance.key(4, 5, i) for i in range(3)]


def test_samples_and_seeds_differ() -> None:
    images = {
        open_dataset("synthetic", classes=10, image=(8, 8), seed=seed).read(sample, "input").sum().item()
        for seed in range(3)
        for sample in range(5)
    }
    assert len(images) == 15


def test_the_class_shows() -> None:
    """A mean brightness tells most of it, so that a loss falls from the first steps on."""
    data = open_dataset("synthetic", classes=4, image=(32, 32), samples=64)
    means = torch.stack([data.read(i, "input").mean() for i in range(64)])
    labels = torch.stack([data.read(i, "target") for i in range(64)])
    by_class = [means[labels == c] for c in range(4)]
    assert all(a.max() < b.min() for a, b in pairwise(by_class))


def lean(image: np.ndarray) -> float:
    """Which way an image's stripes lean: how much more alike neighbours are along one diagonal than the other."""
    x = image - image.mean()
    return float((x[1:, 1:] * x[:-1, :-1] - x[1:, :-1] * x[:-1, 1:]).sum())


def test_a_lesion_is_gone_in_a_small_image() -> None:
    """Down-sampled by 4, the two kinds differ by no more than noise; at full size they are plain."""
    source = Lesions(40, (64, 64), 1, 2, seed=3)
    kinds: list[list[tuple[float, float]]] = [[], []]
    for sample in range(40):
        image = source.pixels(sample, ((0, 64), (0, 64)))[0]
        small = image.reshape(16, 4, 16, 4).mean((1, 3))
        lean = [
            (x[1:, 1:] * x[:-1, :-1] - x[1:, :-1] * x[:-1, 1:]).sum()
            for x in (image - image.mean(), small - small.mean())
        ]
        kinds[source.label(sample)].append((float(lean[0]), float(lean[1])))
    full = [[pair[0] for pair in kind] for kind in kinds]
    small = [[pair[1] for pair in kind] for kind in kinds]
    assert max(full[0]) < min(full[1]) or max(full[1]) < min(full[0])
    assert max(small[0]) > min(small[1]) and max(small[1]) > min(small[0])


def test_lesions_have_masks() -> None:
    source = Lesions(10, (64, 80), 3, 3, segmentation=True)
    for sample in range(10):
        mask = source.mask(sample, ((0, 64), (0, 80)))
        (top, bottom), (left, right) = source.place(sample)
        assert set(np.unique(mask)) == {0, source.label(sample) + 1}
        assert mask[top:bottom, left:right].astype(bool).sum() == mask.astype(bool).sum() > 400


def test_generated_splits_share_nothing() -> None:
    options = {"classes": 10, "image": (8, 8), "samples": 20, "evaluation_fraction": 0.25}
    train, evaluation = (open_dataset("synthetic", split=split, **options) for split in ("train", "evaluation"))
    assert (len(train), len(evaluation)) == (20, 5)
    seen = [{d.read(i, "input").sum().item() for i in range(len(d))} for d in (train, evaluation)]
    assert not seen[0] & seen[1]


def test_datasets_pickle_small() -> None:
    data = open_dataset("lesion", classes=2, samples=10**6)
    frozen = pickle.dumps(data)
    assert len(frozen) < 2000
    assert torch.equal(pickle.loads(frozen).read(7, "input", ((0, 9), (0, 9))), data.read(7, "input", ((0, 9), (0, 9))))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"classes": 9}, "there are lesions of 2 to 4 classes, not 9"),
        ({"classes": 2, "channels": 2}, "lesion images have 1 or 3 channels, not 2"),
        ({"classes": 2, "image": (16, 16)}, r"a lesion of 24 pixels does not fit an image of \(16, 16\)"),
        ({"classes": 2, "samples": 0}, "samples = 0 is below 1"),
    ],
)
def test_lesions_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_dataset("lesion", **options)


def test_lesions_are_not_mirrored() -> None:
    from halocline.data import Augment

    with pytest.raises(ValueError, match="flips and turns make one kind of lesion look like another"):
        open_dataset("lesion", classes=2, augment=Augment(flip=True))
