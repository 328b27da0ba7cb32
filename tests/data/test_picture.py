"""PNG, JPEG and others, whole and in boxes; slides through OpenSlide."""

from __future__ import annotations

from pathlib import Path

import imagecodecs
import numpy as np
import openslide
import pytest
import tifffile
from PIL import Image

from halocline.data.picture import BadFile, SlidePicture, fractions, open_picture

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (60, 80, 3), np.uint8)
BOX = ((7, 50), (3, 71))


@pytest.mark.parametrize("suffix", ["png", "bmp", "ppm", "PNG"])
def test_a_box_of_rgb(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(RGB).save(path, format=None if suffix != "PNG" else "PNG")
    picture = open_picture(str(path))
    assert (picture.size, picture.channels, picture.alpha, picture.white) == ((60, 80), 3, False, 255)
    np.testing.assert_array_equal(picture.read(BOX), RGB[7:50, 3:71].transpose(2, 0, 1))


def test_a_jpeg_is_what_pillow_decodes(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(RGB).save(path)
    whole = np.asarray(Image.open(path))
    np.testing.assert_array_equal(open_picture(str(path)).read(BOX), whole[7:50, 3:71].transpose(2, 0, 1))


@pytest.mark.parametrize(
    "mode, channels, alpha", [("L", 1, False), ("LA", 2, True), ("RGBA", 4, True), ("P", 3, False), ("1", 1, False)]
)
def test_modes(tmp_path: Path, mode: str, channels: int, alpha: bool) -> None:
    path = tmp_path / "a.png"
    image = Image.fromarray(RGB).convert(mode)
    image.save(path)
    picture = open_picture(str(path))
    assert (picture.channels, picture.alpha) == (channels, alpha)
    expected = np.atleast_3d(np.asarray(image.convert("RGB") if mode == "P" else image))
    np.testing.assert_array_equal(picture.read(BOX), expected.transpose(2, 0, 1)[:, 7:50, 3:71])
    assert fractions(picture.read(BOX), picture.white).max() == pytest.approx(1, abs=0.1)


def test_a_palette_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    image = Image.fromarray(RGB[:, :, 0] % 5, mode=None)
    image.putpalette([v for i in range(5) for v in (40 * i, 9, 200 - 40 * i)])
    image.save(path)
    assert open_picture(str(path)).channels == 3
    np.testing.assert_array_equal(open_picture(str(path), indices=True).read(BOX)[0], RGB[7:50, 3:71, 0] % 5)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_sixteen_bits_are_kept(tmp_path: Path, channels: int) -> None:
    deep = RNG.integers(0, 65536, (60, 80, channels), np.uint16)
    path = tmp_path / "deep.png"
    path.write_bytes(imagecodecs.png_encode(deep[:, :, 0] if channels == 1 else deep))
    picture = open_picture(str(path))
    assert (picture.channels, picture.alpha, picture.white) == (channels, channels in (2, 4), 65535)
    np.testing.assert_array_equal(picture.read(BOX), deep[7:50, 3:71].transpose(2, 0, 1))


def test_black_of_a_pgm_of_sixteen_bits_is_zero(tmp_path: Path) -> None:
    """Pillow gives its values as signed numbers, of which 0 would be mid-grey."""
    path = tmp_path / "deep.pgm"
    path.write_bytes(b"P5 2 1 65535\n" + np.array([0, 65535], ">u2").tobytes())
    picture = open_picture(str(path))
    np.testing.assert_array_equal(fractions(picture.read(((0, 1), (0, 2))), picture.white), [[[0, 1]]])


def test_large_images_are_not_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow refuses images of more than 2 x MAX_IMAGE_PIXELS, which we are for; its limit stays for others."""
    path = tmp_path / "a.png"
    Image.fromarray(RGB).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert open_picture(str(path)).read(BOX).shape == (3, 43, 68)
    assert Image.MAX_IMAGE_PIXELS == 1000
    with pytest.raises(Image.DecompressionBombError):
        Image.open(path)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_cut_off_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cut.{suffix}"
    Image.fromarray(RGB).save(path)
    path.write_bytes(path.read_bytes()[:-2000])
    picture = open_picture(str(path))
    for reading in (lambda: picture.read(BOX), lambda: picture.check(thorough=True)):
        with pytest.raises(BadFile, match=rf"cut.{suffix}: cannot be read"):
            reading()


@pytest.mark.parametrize(
    "name, content", [("a.png", b""), ("b.jpg", b"no"), ("c.png", b"\x89PNG\r\n\x1a\n" + b"x" * 40)]
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=rf"{name}: (the file is empty|cannot be read)"):
        open_picture(str(tmp_path / name))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"gone.png: there is no such file"):
        open_picture(str(tmp_path / "gone.png"))
    (tmp_path / "a.doc").write_bytes(b"x")
    with pytest.raises(BadFile, match=r"a.doc: .doc is not an image: bring .png, "):
        open_picture(str(tmp_path / "a.doc"))
    Image.fromarray(RGB).save(tmp_path / "a.png")
    with pytest.raises(BadFile, match=r"a.png: has no pyramid, so there is no level 1"):
        open_picture(str(tmp_path / "a.png"), level=1)


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pyramid of three levels, the last one not a whole fraction of the first."""
    path = tmp_path_factory.mktemp("slide") / "a.svs"
    whole = RNG.integers(0, 256, (1400, 1700, 3), np.uint8)
    with tifffile.TiffWriter(path) as writer:
        for number, step in enumerate((1, 2, 4)):
            level = np.ascontiguousarray(whole[::step, ::step][: 1400 // step - number, : 1700 // step - number])
            writer.write(level, tile=(128, 128), photometric="rgb", subfiletype=bool(number), metadata=None)
    return str(path)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_boxes_of_a_slide(slide: str, level: int) -> None:
    picture = open_picture(slide, level)
    assert isinstance(picture, SlidePicture)
    with openslide.OpenSlide(slide) as whole:
        assert picture.size == whole.level_dimensions[level][::-1]
    height, width = picture.size
    all_of_it = picture.read(((0, height), (0, width)))
    if level == 0:
        with tifffile.TiffFile(slide) as file:
            np.testing.assert_array_equal(all_of_it, file.pages[0].asarray().transpose(2, 0, 1))
    for box in (((0, 100), (0, 50)), ((211, 333), (100, 390)), ((height - 7, height), (0, width))):
        part = all_of_it[:, box[0][0] : box[0][1], box[1][0] : box[1][1]]
        np.testing.assert_array_equal(picture.read(box), part)
    picture.close()


def test_a_slide_without_openslide(slide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SVS is read as the TIFF it is; what only OpenSlide reads asks for it."""
    expected = open_picture(slide).read(BOX)
    monkeypatch.setitem(__import__("sys").modules, "openslide", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    np.testing.assert_array_equal(open_picture(slide).read(BOX), expected)
    other = Path(slide).with_suffix(".mrxs")
    other.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"a.mrxs needs OpenSlide: install halocline\[wsi\]"):
        open_picture(str(other))


def test_an_unknown_slide_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.ndpi").write_bytes(b"nothing of the kind")
    with pytest.raises(BadFile, match=r"a.ndpi: is not a slide that OpenSlide knows"):
        open_picture(str(tmp_path / "a.ndpi"))
