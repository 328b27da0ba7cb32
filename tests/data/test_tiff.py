"""TIFF files of every make, read box by box; tifffile reading the whole file is the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halocline.data.picture import BadFile, fractions, open_picture
from halocline.tiling.boxes import Box

HEIGHT, WIDTH = 150, 210
WHOLE = ((0, HEIGHT), (0, WIDTH))


def picture_of(kind: type, channels: int) -> NDArray:
    """Smooth with some noise, so that every compression has something to do."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    smooth = (rows[:, :, None] + 2 * columns[:, :, None] + 40 * np.arange(channels)) % 200 / 255
    values = smooth + rng.uniform(0, 0.1, (HEIGHT, WIDTH, channels))
    if np.issubdtype(kind, np.floating):
        return values.astype(kind)
    if kind is np.bool_:
        return values > 0.4
    limits = np.iinfo(kind)
    return (values * limits.max + (limits.min // 2)).astype(kind)


MAKES: dict[str, tuple[type, int, dict[str, Any]]] = {
    "strips": (np.uint8, 3, {"rowsperstrip": 16}),
    "one strip": (np.uint8, 3, {}),
    "tiles": (np.uint8, 3, {"tile": (32, 48)}),
    "tiles beyond the image": (np.uint8, 3, {"tile": (256, 256)}),
    "grey": (np.uint8, 1, {"tile": (64, 64)}),
    "16 bits": (np.uint16, 3, {"tile": (64, 64), "compression": "zlib", "predictor": True}),
    "16 bits, big-endian strips": (np.uint16, 1, {"byteorder": ">", "rowsperstrip": 10}),
    "big-endian tiles": (np.uint16, 3, {"byteorder": ">", "tile": (32, 32), "compression": "lzw"}),
    "signed": (np.int16, 1, {"rowsperstrip": 16}),
    "floats": (np.float32, 1, {"tile": (32, 32), "compression": "zlib", "predictor": True}),
    "deflate strips": (np.uint8, 3, {"rowsperstrip": 16, "compression": "zlib"}),
    "lzw": (np.uint8, 3, {"tile": (32, 32), "compression": "lzw", "predictor": True}),
    "zstd": (np.uint8, 3, {"tile": (32, 32), "compression": "zstd"}),
    "jpeg": (np.uint8, 3, {"tile": (32, 32), "compression": "jpeg"}),
    "jpeg, subsampled": (
        np.uint8,
        3,
        {"tile": (32, 32), "compression": "jpeg", "compressionargs": {"subsampling": (2, 2)}},
    ),
    "jpeg 2000": (np.uint8, 3, {"tile": (64, 64), "compression": "jpeg2000"}),
    "webp": (np.uint8, 3, {"tile": (64, 64), "compression": "webp"}),
    "separate tiles": (np.uint8, 3, {"tile": (32, 32), "planarconfig": "separate"}),
    "separate strips": (np.uint16, 3, {"rowsperstrip": 16, "planarconfig": "separate"}),
    "separate and packed": (np.uint8, 3, {"rowsperstrip": 7, "planarconfig": "separate", "compression": "lzw"}),
    "BigTIFF": (np.uint8, 3, {"tile": (32, 32), "bigtiff": True}),
    "five bands": (
        np.uint16,
        5,
        {"tile": (32, 32), "photometric": "minisblack", "planarconfig": "contig"},
    ),
    "one bit": (np.bool_, 1, {"rowsperstrip": 16}),
    "packed bits": (np.uint8, 1, {"rowsperstrip": 16, "compression": "packbits"}),
}


def write(path: Path, kind: type, channels: int, options: dict[str, Any]) -> NDArray:
    """Writes a make's file; gives what is in it, channels first."""
    pixels = picture_of(kind, channels)
    photometric = options.get("photometric", "rgb" if channels >= 3 else "minisblack")
    channels_first = options.get("planarconfig") == "separate"
    data = pixels.transpose(2, 0, 1) if channels_first else pixels
    if channels == 1:
        data = pixels[:, :, 0]
    tifffile.imwrite(path, data, **{**options, "photometric": photometric})
    whole = tifffile.imread(path)
    if whole.ndim == 2:
        return whole[None]
    return whole if channels_first else whole.transpose(2, 0, 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, NDArray]]:
    folder = tmp_path_factory.mktemp("tiff")
    files = {}
    for number, (name, make) in enumerate(MAKES.items()):
        path = folder / f"{number}.tif"
        files[name] = (str(path), write(path, *make))
    return files


boxes = st.tuples(
    *(st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True).map(sorted) for size in (HEIGHT, WIDTH))
).map(lambda box: tuple((a, b) for a, b in box))


@pytest.mark.parametrize("name", MAKES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(box=boxes)
def test_a_box_is_that_part_of_the_whole(made: dict[str, tuple[str, NDArray]], name: str, box: Box) -> None:
    path, whole = made[name]
    picture = open_picture(path)
    try:
        read = picture.read(box)
    finally:
        picture.close()
    (top, bottom), (left, right) = box
    assert read.dtype == whole.dtype
    np.testing.assert_array_equal(read, whole[:, top:bottom, left:right])


@pytest.mark.parametrize("name", MAKES)
def test_size_channels_and_white(made: dict[str, tuple[str, NDArray]], name: str) -> None:
    path, whole = made[name]
    picture = open_picture(path)
    picture.check(thorough=True)
    picture.close()
    assert (picture.channels, *picture.size) == whole.shape
    assert not picture.alpha
    values = fractions(whole, picture.white)
    assert values.dtype == np.float32 and values.min() >= 0 and values.max() <= 1.2  # 1.2: floats are taken as they are


def test_levels_of_a_pyramid(tmp_path: Path) -> None:
    whole = picture_of(np.uint8, 3)
    smaller = whole[::2, ::2]
    for name, subifds in (("sub.ome.tif", 1), ("pages.tif", 0)):
        options: dict[str, Any] = {"tile": (32, 32), "photometric": "rgb"}
        if not subifds:
            options["metadata"] = None
        with tifffile.TiffWriter(tmp_path / name) as writer:
            writer.write(whole, subifds=subifds, **options)
            writer.write(smaller, subfiletype=1, **options)
        for level, expected in enumerate((whole, smaller)):
            picture = open_picture(str(tmp_path / name), level)
            assert picture.size == expected.shape[:2]
            read = picture.read(((10, 60), (30, 100)))
            np.testing.assert_array_equal(read, expected[10:60, 30:100].transpose(2, 0, 1))
            picture.close()
        with pytest.raises(BadFile, match=r"has 2 levels and no level 2: use 0 to 1"):
            open_picture(str(tmp_path / name), 2)


def test_channels_of_ome_are_pages(tmp_path: Path) -> None:
    whole = picture_of(np.uint16, 4).transpose(2, 0, 1).copy()
    path = tmp_path / "four.ome.tif"
    tifffile.imwrite(path, whole, tile=(32, 32), photometric="minisblack", metadata={"axes": "CYX"})
    picture = open_picture(str(path))
    assert picture.channels == 4
    np.testing.assert_array_equal(picture.read(((3, 99), (64, 200))), whole[:, 3:99, 64:200])
    picture.close()


def test_a_stack_of_planes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "volume.ome.tif"
    tifffile.imwrite(path, np.zeros((5, 40, 40), np.uint8), photometric="minisblack", metadata={"axes": "ZYX"})
    with pytest.raises(BadFile, match=r"volume.ome.tif: has axes ZYX .* save one plane per file"):
        open_picture(str(path))


def test_a_stack_in_one_page_is_refused(tmp_path: Path) -> None:
    """Written without a page per plane, its first plane was taken for the whole."""
    path = tmp_path / "stack.tif"
    tifffile.imwrite(path, np.zeros((3, 40, 40), np.uint8), photometric="minisblack", truncate=True)
    with pytest.raises(BadFile, match=r"stack.tif: has shape \(3, 40, 40\) and lists 1 page"):
        open_picture(str(path))


@pytest.mark.parametrize("colours, name", [("ycbcr", "YCbCr"), ("cielab", "CIE Lab")])
def test_colours_that_are_not_red_green_and_blue_are_refused(tmp_path: Path, colours: str, name: str) -> None:
    path = tmp_path / "x.tif"
    options = {"subsampling": (1, 1)} if colours == "ycbcr" else {}
    tifffile.imwrite(path, picture_of(np.uint8, 3), photometric=colours, compression="zlib", **options)
    with pytest.raises(BadFile, match=f"x.tif: has {name} colours, which are not read: save it as RGB"):
        open_picture(str(path))


def test_alpha_is_told_from_a_fourth_band(tmp_path: Path) -> None:
    four = picture_of(np.uint8, 4)
    for name, extra, alpha in (("alpha.tif", "unassalpha", True), ("infrared.tif", "unspecified", False)):
        tifffile.imwrite(tmp_path / name, four, photometric="rgb", extrasamples=(extra,))
        picture = open_picture(str(tmp_path / name))
        assert (picture.channels, picture.alpha) == (4, alpha)
        picture.close()


def test_a_palette_gives_colours_or_numbers(tmp_path: Path) -> None:
    numbers = (picture_of(np.uint8, 1)[:, :, 0] % 7).astype(np.uint8)
    colours = np.random.default_rng(1).integers(0, 65536, (3, 256)).astype(np.uint16)
    path = str(tmp_path / "palette.tif")
    tifffile.imwrite(path, numbers, photometric="palette", colormap=colours)
    shown, indices = open_picture(path), open_picture(path, indices=True)
    np.testing.assert_array_equal(shown.read(WHOLE), colours[:, numbers])
    np.testing.assert_array_equal(indices.read(WHOLE)[0], numbers)
    shown.close()
    indices.close()


def test_white_is_zero_is_inverted(tmp_path: Path) -> None:
    grey = picture_of(np.uint8, 1)[:, :, 0]
    path = str(tmp_path / "white.tif")
    tifffile.imwrite(path, grey, photometric="miniswhite")
    picture = open_picture(path)
    np.testing.assert_array_equal(picture.read(WHOLE)[0], 255 - grey)
    picture.close()


def test_tiles_never_written_are_empty(tmp_path: Path) -> None:
    def tiles() -> Any:
        for number in range(4):
            yield None if number % 2 else np.full((64, 64), 9, np.uint8)

    path = str(tmp_path / "sparse.tif")
    tifffile.imwrite(path, tiles(), shape=(128, 128), dtype=np.uint8, tile=(64, 64))
    picture = open_picture(path)
    picture.check(thorough=True)
    np.testing.assert_array_equal(picture.read(((0, 128), (0, 128)))[0], tifffile.imread(path))
    picture.close()


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.95])
def test_a_cut_off_file_is_named(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "cut.tif"
    tifffile.imwrite(path, picture_of(np.uint8, 3), tile=(32, 32), photometric="rgb")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    picture = open_picture(str(path))
    with pytest.raises(BadFile, match=r"cut.tif: is cut off: it has \d+ bytes of \d+"):
        picture.check(thorough=False)
    with pytest.raises(BadFile, match=r"cut.tif: cannot be read \(the file ends \d+ bytes early\)"):
        picture.read(WHOLE)
    picture.close()


def test_damaged_tiles_are_named(tmp_path: Path) -> None:
    path = tmp_path / "damaged.tif"
    tifffile.imwrite(path, picture_of(np.uint8, 3), tile=(64, 64), compression="zlib", photometric="rgb")
    with tifffile.TiffFile(path) as file:
        offset = file.pages[0].dataoffsets[-1]
    data = bytearray(path.read_bytes())
    data[offset : offset + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))
    picture = open_picture(str(path))
    picture.check(thorough=False)
    picture.read(((0, 64), (0, 64)))  # a good tile of a bad file
    with pytest.raises(BadFile, match=r"damaged.tif: cannot be read"):
        picture.read(((128, 150), (200, 210)))
    with pytest.raises(BadFile, match=r"damaged.tif: cannot be read"):
        picture.check(thorough=True)
    picture.close()


@pytest.mark.parametrize("content", [b"", b"II*\0", b"not a tiff at all", b"II*\0\x08\0\0\0"])
def test_what_is_no_tiff_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "none.tif"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=r"none.tif: (the file is empty|cannot be read|holds no image)"):
        open_picture(str(path))


def test_a_missing_codec_is_named(tmp_path: Path) -> None:
    """Without imagecodecs, which is an extra: Deflate is read, and what cannot be says what to install."""
    for compression in ("zlib", "lzw", "jpeg", "zstd"):
        tifffile.imwrite(
            tmp_path / f"{compression}.tif", picture_of(np.uint8, 3), compression=compression, tile=(64, 64)
        )
    code = (
        "import sys; sys.modules['imagecodecs'] = None\n"
        "from halocline.data.picture import open_picture\n"
        "for name in ('zlib', 'lzw', 'jpeg', 'zstd'):\n"
        "    try: print(open_picture(f'{sys.argv[1]}/{name}.tif').read(((0, 9), (0, 9))).shape)\n"
        "    except ValueError as error: print(error)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True, timeout=300
    ).stdout.splitlines()
    needs = "needs imagecodecs to be decoded: install halocline[images]"
    assert printed == ["(3, 9, 9)", *(f"{tmp_path}/{name}.tif {needs}" for name in ("lzw", "jpeg", "zstd"))]
