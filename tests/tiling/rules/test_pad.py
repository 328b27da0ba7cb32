"""Padding an image that is cut into tiles: every mode, any width, negative too, at image borders and beyond a tile."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact, image

MODES = ["constant", "reflect", "replicate", "circular"]


@settings(max_examples=150, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    size=st.integers(1, 9),
    lo=st.integers(-4, 8),
    hi=st.integers(-4, 8),
    tiles=st.integers(1, 4),
    margin=st.integers(0, 2),
)
def test_any_pad_of_a_line(mode: str, size: int, lo: int, hi: int, tiles: int, margin: int) -> None:
    if size + min(lo, 0) + min(hi, 0) < 1:
        return
    left = size + min(lo, 0) + min(hi, 0) if mode == "circular" else size
    if max(lo, hi) > {"reflect": size - 1, "circular": left}.get(mode, 8):
        return
    assert_exact(lambda x: F.pad(x, (lo, hi), mode), (1, 2, size), grid=(min(tiles, size),), margin=margin, tiled=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "pad", [(1, 1, 1, 1), (2, 0, 0, 3), (-1, 2, 1, -2), (4, 5, 3, 6), (-2, -1, -1, 0), (0, 0, 0, 0)]
)
def test_two_dims(mode: str, pad: tuple[int, ...]) -> None:
    for cut in ({"grid": (2, 2)}, {"grid": (1, 4)}, {"cuts": [[0, 1, 2, 8], [0, 9]]}, {"grid": (2, 2), "margin": 2}):
        assert_exact(lambda x: F.pad(x, pad, mode), (2, 3, 8, 9), **cut)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_three_dims(mode: str) -> None:
    assert_exact(lambda x: F.pad(x, (1, 2, 0, 1, 2, 2), mode), (1, 2, 4, 3, 5), grid=(2, 1, 2))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_modes_of_a_convolution(mode: str) -> None:
    assert_exact(nn.Conv2d(3, 2, 5, 2, padding=2, padding_mode=mode), (2, 3, 8, 9), grid=(2, 2))


def test_modules_values_and_other_dims() -> None:
    for function in (
        nn.ConstantPad2d((1, 2, 0, 3), 0.7),
        nn.ZeroPad2d(2),
        nn.ReflectionPad2d(2),
        nn.ReplicationPad2d((0, 5, 6, 1)),
        nn.CircularPad2d(3),
        lambda x: F.pad(x, (0, 0, 0, 0, 1, 2, 0, 1), value=2.0),
        lambda x: F.pad(x, (1, 0, 0, 0, -1, 2)),
        lambda x: F.pad(x.permute(0, 2, 3, 1), (0, 0, 0, 3, 0, 2)),
        lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=float("-inf")), 3, 2),
    ):
        assert_exact(function, (2, 3, 8, 9), grid=(2, 2))


def test_one_cut_dim_of_two_padded_ones() -> None:
    for mode in MODES:
        assert_exact(lambda x, mode=mode: F.pad(x, (1, 2, 3, 1), mode), (2, 3, 5, 9), grid=(3,))


def test_tiles_without_pixels() -> None:
    def run(x: Tensor) -> Tensor:
        x = F.max_pool2d(x, 4)
        for mode, pad in (("constant", (1, 1, 1, 0)), ("reflect", (2, 1, 1, 1)), ("replicate", (0, 3, 2, 1))):
            x = F.max_pool2d(F.pad(x, pad, mode), 2, 1)
        return F.pad(x, (1, 2, 1, 0), "circular")

    assert_exact(run, (1, 2, 8, 8), grid=(1, 4))
    assert_exact(run, (1, 2, 8, 8), cuts=[[0, 7, 8], [0, 1, 8]])


@pytest.mark.parametrize("mode", MODES)
def test_writing_into_the_padded_image_leaves_the_image(mode: str) -> None:
    assert_exact(lambda x: F.relu_(F.pad(x, (1, 1, 1, 1), mode))[..., 1:-1, 1:-1] + x, (1, 2, 9, 9), grid=(3, 3))


def test_a_pad_that_does_not_fit_is_refused() -> None:
    x = tiling.tile(torch.zeros(1, 3, 8, 6), (1, 2), NoCommunication(0, 2))
    with pytest.raises(ValueError, match="a reflect pad of 6 pixels is at most 5"):
        F.pad(x, (6, 0), "reflect")
    with pytest.raises(ValueError, match="takes more than the 6"):
        F.pad(x, (-3, -4))
    with pytest.raises(NotImplementedError, match="unknown"):
        F.pad(x, (1, 1), "mirror")


@pytest.mark.parametrize("pads", [(-1, 3), (3, -1), (-1, 1), (-1, 2, 2, -1)])
@pytest.mark.parametrize("value", [0.0, 2.5])
def test_a_constant_pad_that_crops_all_pixels_is_all_pad(pads: tuple[int, ...], value: float) -> None:
    assert_exact(lambda x: F.pad(x[..., :1, -1:], pads, value=value), (2, 3, 4, 5), grid=(2, 2))
    assert_exact(lambda x: F.pad(x, (-5, 4), value=value), (2, 3, 4, 5), grid=(1, 3))


@pytest.mark.parametrize("pads", [(-1, 3), (3, -1), (-2, 3), (-4, 6)])
def test_a_repeating_pad_may_crop_all_pixels(pads: tuple[int, int]) -> None:
    assert_exact(lambda x: F.pad(x[..., :1], pads, "replicate"), (2, 3, 5), grid=(2,))


@pytest.mark.parametrize(
    ("pads", "mode"),
    [
        ((-1, 3), "circular"),
        ((-3, 1), "circular"),
        ((-1, 3), "reflect"),
        ((-4, 6), "constant"),
        ((-2, -2), "replicate"),
    ],
)
def test_a_pad_that_torch_cannot_make_is_an_error(pads: tuple[int, int], mode: str) -> None:
    x = tiling.tile(image((2, 3, 3)), (1,), NoCommunication(0, 1))
    with pytest.raises(ValueError):
        F.pad(x, pads, mode)


@pytest.mark.parametrize("mode", ["constant", "circular"])
def test_a_pad_that_leaves_no_pixels_is_refused(mode: str) -> None:
    x = tiling.tile(image((2, 3, 3)), (1,), NoCommunication(0, 1))
    with pytest.raises(UntiledOperation, match="leaves none"):
        F.pad(x, (-2, -1), mode)


@pytest.mark.parametrize("pad", [(1, 2), (0, 1, 2, 0, 1, 1), (1, 1, 1, 1, 1, 1, 2, 1)])
def test_a_batch_without_samples_is_padded(pad: tuple[int, ...]) -> None:
    assert_exact(lambda x: F.pad(x, pad, value=2.0), (0, 2, 5, 6), grid=(2, 2))
    assert_exact(lambda x: F.pad(x, (1, 2, 1, 0), "reflect"), (0, 2, 5, 6), grid=(2, 1))
