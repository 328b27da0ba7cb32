"""Augmented images: all tiles of one image agree, and a box is that part of the whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halocline.data import Augment, Images, parse_augment
from halocline.data.augment import View
from halocline.data.dataset import IGNORED
from halocline.tiling.boxes import Box, is_empty


@dataclass(frozen=True)
class Numbered:
    """A source in which every pixel has its own value, and the mask says which it is."""

    height: int
    width: int
    channels: int = 3
    samples: int = 50

    bytes_read = 0
    skipped: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        return self.height * self.width

    def __len__(self) -> int:
        return self.samples

    def name(self, sample: int) -> str:
        return f"number {sample}"

    def size(self, sample: int) -> tuple[int, int]:
        return self.height, self.width

    def label(self, sample: int) -> int:
        return sample

    def mask(self, sample: int, box: Box) -> NDArray[np.int64]:
        assert all(0 <= a < b <= n for (a, b), n in zip(box, (self.height, self.width))), "read outside the image"
        whole = np.arange(self.height * self.width).reshape(self.height, self.width)
        return whole[tuple(slice(*i) for i in box)]

    def pixels(self, sample: int, box: Box) -> NDArray[np.float32]:
        places = self.mask(sample, box).astype(np.float32) / np.float32(self.height * self.width)
        return np.stack([places * np.float32(1 - channel / 4) for channel in range(self.channels)])


augments = st.builds(
    Augment,
    flip=st.booleans(),
    upend=st.booleans(),
    rotate=st.booleans(),
    crop=st.booleans(),
    pad=st.integers(0, 3),
    brightness=st.sampled_from([0.0, 0.3]),
    contrast=st.sampled_from([0.0, 0.5]),
    saturation=st.sampled_from([0.0, 1.0]),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Images, int, int, Box]:
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    if draw(st.booleans()):
        width = height
    source = Numbered(height + draw(st.integers(0, 4)), width + draw(st.integers(0, 4)), draw(st.sampled_from([1, 3])))
    augment = draw(augments)
    images = Images(
        source, image=(height, width), segmentation=True, augment=augment, seed=draw(st.integers(0, 99)), mean=(0.4,)
    )
    box = tuple((draw(st.integers(0, n - 1)), n) for n in (height, width))
    box = tuple((a, draw(st.integers(a, b))) for a, b in box)
    return images, draw(st.integers(0, 49)), draw(st.integers(0, 5)), box


@settings(max_examples=400, deadline=None)
@given(case=cases())
def test_a_box_of_the_augmented_image_is_that_part_of_it(case: tuple[Images, int, int, Box]) -> None:
    images, sample, epoch, box = case
    rows, columns = (slice(*i) for i in box)
    for what in ("input", "target"):
        whole = images.read(sample, what, epoch=epoch)
        assert torch.equal(images.read(sample, what, box, epoch=epoch), whole[..., rows, columns])


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_masks_follow_their_images(case: tuple[Images, int, int, Box]) -> None:
    """Without a change of colours, the mask of `Numbered` tells the value of each pixel."""
    images, sample, epoch, _ = case
    assert images.augment is not None
    plain = Augment(**{n: getattr(images.augment, n) for n in ("flip", "upend", "rotate", "crop", "pad")})
    images = Images(images.source, image=images.image, segmentation=True, augment=plain, seed=images.seed)
    image, mask = images.read(sample, "input", epoch=epoch)[0], images.read(sample, "target", epoch=epoch)
    outside = mask == IGNORED
    expected = mask.to(torch.float32) / images.classes
    assert torch.equal(image[~outside], expected[~outside])
    assert (image[outside] == 0).all()
    if not plain.pad:
        assert not outside.any()


@settings(max_examples=200, deadline=None)
@given(
    transpose=st.booleans(), rows=st.booleans(), columns=st.booleans(), top=st.integers(-2, 3), left=st.integers(-2, 3)
)
def test_views_agree_with_numpy(transpose: bool, rows: bool, columns: bool, top: int, left: int) -> None:
    source = np.arange(14 * 15).reshape(14, 15)
    view = View((5, 5), top + 3, left + 3, transpose, rows, columns)
    seen = source[view.top : view.top + 5, view.left : view.left + 5]
    seen = seen.T if transpose else seen
    seen = seen[::-1] if rows else seen
    seen = seen[:, ::-1] if columns else seen
    box = ((1, 4), (0, 3))
    (a, b), (c, d) = view.source(box)
    np.testing.assert_array_equal(view.turn(source[a:b, c:d]), seen[1:4, 0:3])
    assert not is_empty(view.source(box))


@pytest.mark.parametrize("name, kinds", [("flip", 2), ("upend", 2), ("rotate", 4), ("flip,upend,rotate", 8)])
def test_every_turn_comes_up(name: str, kinds: int) -> None:
    images = Images(Numbered(4, 4, samples=120), image=(4, 4), augment=parse_augment(name))
    seen = {tuple(images.read(sample, "input")[0].flatten().tolist()) for sample in range(120)}
    whole = Images(Numbered(4, 4), image=(4, 4)).read(0, "input")[0]
    turns = {tuple(torch.rot90(w, k).flatten().tolist()) for w in (whole, whole.T) for k in range(4)}
    assert len(seen) == kinds and seen <= turns


def test_quarter_turns_are_turns() -> None:
    """A rotation never mirrors."""
    images = Images(Numbered(4, 4, samples=60), image=(4, 4), augment=Augment(rotate=True))
    whole = Images(Numbered(4, 4), image=(4, 4)).read(0, "input")
    turns = [torch.rot90(whole, k, (1, 2)) for k in range(4)]
    for sample in range(60):
        assert any(torch.equal(images.read(sample, "input"), turn) for turn in turns)


def test_images_that_are_not_square_turn_by_half() -> None:
    images = Images(Numbered(4, 6, samples=60), image=(4, 6), augment=Augment(rotate=True))
    whole = Images(Numbered(4, 6), image=(4, 6)).read(0, "input")
    seen = {images.read(sample, "input").flatten()[0].item() for sample in range(60)}
    assert seen == {whole.flatten()[0].item(), whole[0, -1, -1].item()}


def test_chance_differs_by_epoch_and_sample_and_not_otherwise() -> None:
    def images() -> Images:
        return Images(Numbered(40, 40), image=(8, 8), augment=parse_augment("flip,rotate,crop,colour"), seed=5)

    first, second = images(), images()
    draws = [first.read(sample, "input", epoch=epoch) for sample in range(5) for epoch in range(5)]
    again = [second.read(sample, "input", epoch=epoch) for sample in range(5) for epoch in range(5)]
    assert all(torch.equal(a, b) for a, b in zip(draws, again))
    assert len({tuple(image.flatten().tolist()) for image in draws}) == 25


def test_a_crop_comes_from_anywhere_and_the_middle_without_it() -> None:
    corners = {Images(Numbered(10, 9), image=(8, 8), augment=Augment(crop=True)).read(s, "input")[0, 0, 0].item()
               for s in range(50)}  # fmt: skip
    assert len(corners) == 3 * 2
    middle = Images(Numbered(10, 9), image=(8, 8), segmentation=True).read(0, "target")
    assert middle[0, 0] == 1 * 9 + 0


def test_colours_stay_colours() -> None:
    images = Images(Numbered(16, 16), image=(16, 16), augment=parse_augment("colour=1"))
    for sample in range(20):
        image = images.read(sample, "input")
        assert image.min() >= 0 and image.max() <= 1
    grey = Images(Numbered(16, 16, 1), image=(16, 16), augment=Augment(saturation=1.0))
    assert torch.equal(grey.read(0, "input"), Images(Numbered(16, 16, 1), image=(16, 16)).read(0, "input"))


def test_parse() -> None:
    assert parse_augment("none") is None and parse_augment("") is None
    assert parse_augment("flip, rotate") == Augment(flip=True, rotate=True)
    assert parse_augment("pad=4,colour=0.3") == Augment(pad=4, brightness=0.3, contrast=0.3, saturation=0.3)
    for text, message in (
        ("flop", "'flop' is not an augmentation: did you mean flip"),
        ("flip=2", "flip=2: flip takes no value: write flip"),
        ("pad", "pad: '' is not a number: write pad=4"),
        ("colour=2", r"brightness = 2.0 is not in \[0, 1\]"),
        ("pad=-1", "pad = -1 is below 0"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_augment(text)


def test_bad_requests() -> None:
    images = Images(Numbered(8, 8), image=(8, 8))
    with pytest.raises(ValueError, match=r"box \(\(0, 9\), \(0, 8\)\) is not inside the image, .* \(8, 8\)"):
        images.read(0, "input", ((0, 9), (0, 8)))
    with pytest.raises(ValueError, match="number 3 has 8 x 8 pixels, fewer than the 9 x 8 asked for"):
        Images(Numbered(8, 8), image=(9, 8)).read(3, "input")
    with pytest.raises(ValueError, match="mean has 2 values for 3 channels"):
        Images(Numbered(8, 8), image=(8, 8), mean=(0.5, 0.5))
    with pytest.raises(ValueError, match=r"std .* has a value that is not above 0"):
        Images(Numbered(8, 8), image=(8, 8), std=(0.5, 0.0, 1.0))


def test_what_is_not_turned_is_not_copied() -> None:
    pixels = np.zeros((3, 4, 4), np.float32)
    assert View((4, 4)).turn(pixels) is pixels
    for seen in (View((4, 4), flip_rows=True).turn(pixels), View((4, 4)).turn(pixels[:2])):  # somebody else's memory
        assert seen.flags.owndata and seen.flags.c_contiguous and not np.shares_memory(seen, pixels)
