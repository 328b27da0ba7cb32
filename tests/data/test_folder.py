"""Class folders, masks, and bad files: what is read, in which order, and what is said about it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from halocline.data import BadFile, Dataset, open_dataset
from halocline.data.dataset import IGNORED, bytes_read, skipped
from halocline.data.folder import list_classes, list_masks

RNG = np.random.default_rng(0)


def picture(path: Path, size: tuple[int, int] = (20, 24), channels: int = 3, value: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if channels == 1 else (*size, channels)
    pixels = RNG.integers(0, 256, shape, np.uint8) if value is None else np.full(shape, value, np.uint8)
    if path.suffix == ".tif":
        tifffile.imwrite(path, pixels, tile=(16, 16), photometric="rgb" if channels > 1 else "minisblack")
    else:
        Image.fromarray(pixels).save(path)


def as_bytes(image: torch.Tensor) -> np.ndarray:
    """An image as it lies in a file: bytes, channels last."""
    return (image * 255).round().byte().numpy().transpose(1, 2, 0)


def classes_at(root: Path) -> Path:
    """Two classes, files of several formats and depths, and what is none of our business."""
    for number, name in enumerate(["b/2.png", "b/1.tif", "a/sub/3.png", "a/0.jpg", "a/1.png"]):
        picture(root / name, value=10 * number)
    (root / "a" / "notes.txt").write_text("no image")
    (root / "a" / ".hidden.png").write_text("no image")
    (root / ".cache").mkdir()
    return root


def opened(root: Path, split: str = "train", **options: object) -> Dataset:
    given = {"classes": 2, "image": (20, 24), "evaluation_fraction": 0.0, "split": split, **options}
    return open_dataset("folder", root, **given)  # type: ignore[arg-type]


def test_classes_are_numbered_by_name_and_files_sorted(tmp_path: Path) -> None:
    data = opened(classes_at(tmp_path))
    assert [data.read(i, "target").item() for i in range(5)] == [0, 0, 0, 1, 1]
    listing, is_split = list_classes(tmp_path, "train")
    assert [Path(p).relative_to(tmp_path).as_posix() for p in listing.images] == [
        "a/0.jpg",
        "a/1.png",
        "a/sub/3.png",
        "b/1.tif",
        "b/2.png",
    ]
    assert listing.classes == ("a", "b") and not is_split
    means = [round(data.read(i, "input").mean().item() * 255) for i in range(5)]
    assert means == [30, 40, 20, 10, 0]
    assert data.inputs[0].shape == (3, 20, 24) and data.targets[0].shape == ()


def test_train_and_val_folders(tmp_path: Path) -> None:
    classes_at(tmp_path / "train")
    picture(tmp_path / "val" / "b" / "9.png")
    assert (len(opened(tmp_path)), len(opened(tmp_path, "evaluation"))) == (5, 1)
    assert opened(tmp_path, "evaluation").read(0, "target") == 1  # b, though val has no a
    picture(tmp_path / "val" / "c" / "9.png")
    with pytest.raises(ValueError, match="val/c is a class without training images"):
        opened(tmp_path, "evaluation")


def test_a_fraction_is_kept_for_evaluation(tmp_path: Path) -> None:
    for number in range(20):
        picture(tmp_path / "train" / "ab"[number % 2] / f"{number}.png", value=number)
    options = {"evaluation_fraction": 0.25, "seed": 3}
    train, evaluation = (opened(tmp_path, split, **options) for split in ("train", "evaluation"))
    values = [{round(d.read(i, "input").mean().item() * 255) for i in range(len(d))} for d in (train, evaluation)]
    assert (len(train), len(evaluation)) == (15, 5)
    assert values[0] | values[1] == set(range(20)) and not values[0] & values[1]
    other = opened(tmp_path, "evaluation", evaluation_fraction=0.25, seed=4)
    assert {round(other.read(i, "input").mean().item() * 255) for i in range(5)} != values[1]
    with pytest.raises(ValueError, match="nothing is left for evaluation of 20 samples with a fraction of 0"):
        opened(tmp_path, "evaluation")


def test_boxes_and_bytes_of_a_folder(tmp_path: Path) -> None:
    for number in range(3):
        picture(tmp_path / "a" / f"{number}.tif", (256, 256))
    data = opened(tmp_path, image=(256, 256))
    whole = data.read(1, "input")
    before = bytes_read(data)
    part = data.read(1, "input", ((64, 128), (128, 256)))
    assert torch.equal(part, whole[:, 64:128, 128:256])
    assert bytes_read(data) - before == 64 * 128 * 3
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.read(1, "input", ((64, 128), (128, 256))), part)


def test_more_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halocline.data.files.OPEN_FILES", 2)
    for number in range(5):
        picture(tmp_path / "a" / f"{number}.tif", value=number)
    data = opened(tmp_path)
    for _ in range(2):
        assert [round(data.read(i, "input").max().item() * 255) for i in range(5)] == list(range(5))
    assert bytes_read(data) > 10 * 20 * 24 * 3


def test_larger_files_are_cropped_and_smaller_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "0.png", (30, 24))
    picture(tmp_path / "a" / "1.png", (20, 24))
    data = opened(tmp_path)
    whole = np.asarray(Image.open(tmp_path / "a" / "0.png"))
    assert torch.equal(
        (data.read(0, "input") * 255).round().byte(), torch.from_numpy(whole[5:25].transpose(2, 0, 1).copy())
    )
    with pytest.raises(BadFile, match=r"a/1.png: it has 20 x 24 pixels, fewer than the 21 x 24 asked for"):
        opened(tmp_path, image=(21, 24))
    assert skipped(opened(tmp_path, image=(21, 24), bad="skip")) == (str(tmp_path / "a" / "1.png"),)
    assert opened(tmp_path, image=None, bad="skip").inputs[0].shape == (3, 30, 24)  # the first file's size


def spoil(root: Path, how: str) -> Path:
    """Five good files and a bad one between them."""
    classes_at(root)
    path = root / "a" / "5.png"
    if how == "empty":
        path.write_bytes(b"")
    elif how == "no image":
        path.write_bytes(b"hello")
    elif how == "cut":
        picture(path, (60, 60))
        path.write_bytes(path.read_bytes()[:-3000])
    elif how == "grey":
        picture(path, channels=1)
    elif how == "cut tiff":
        path = path.with_suffix(".tif")
        picture(path, (60, 60))
        path.write_bytes(path.read_bytes()[:-3000])
    elif how == "gone":
        path.symlink_to(root / "nowhere.png")
    elif how == "damaged tiff":
        path = path.with_suffix(".tif")
        tifffile.imwrite(path, RNG.integers(0, 9, (60, 60, 3), np.uint8), compression="zlib", photometric="rgb")
        with tifffile.TiffFile(path) as file:
            offset = file.pages[0].dataoffsets[0]
        data = bytearray(path.read_bytes())
        data[offset : offset + 9] = b"\xff" * 9
        path.write_bytes(bytes(data))
    return path


REASONS = {
    "empty": "the file is empty",
    "no image": "cannot be read",
    "cut": "cannot be read",
    "grey": "has 1 channels, and 3 are asked for: convert it, or train a model for 1",
    "cut tiff": "is cut off",
    "gone": "there is no such file",
    "damaged tiff": "cannot be read",
}


@pytest.mark.parametrize("how", REASONS)
def test_bad_files_stop_or_are_skipped(tmp_path: Path, how: str) -> None:
    path = spoil(tmp_path, how)
    with pytest.raises(BadFile, match=f"{path}: {REASONS[how]}"):
        data = opened(tmp_path)  # most are found before training,
        for sample in range(len(data)):
            data.read(sample, "input")  # the rest when they are read
    told: list[tuple[int, int]] = []
    data = opened(tmp_path, bad="skip", progress=lambda done, total: told.append((done, total)))
    assert (len(data), skipped(data)) == (5, (str(path),))
    assert told == [(n, 6) for n in range(1, 7)]
    assert [data.read(i, "input").shape for i in range(5)] == [(3, 20, 24)] * 5


def test_one_process_can_tell_the_others(tmp_path: Path) -> None:
    path = spoil(tmp_path, "cut")
    first = opened(tmp_path, bad="skip")
    other = opened(tmp_path, bad="skip", known_bad=skipped(first))
    assert (len(other), skipped(other)) == (5, (str(path),))


def test_the_size_is_that_of_the_first_good_file(tmp_path: Path) -> None:
    """A bad one's was asked of all the others, and processes that were told of it took another."""
    picture(tmp_path / "a" / "0.png", (40, 44), channels=1)
    picture(tmp_path / "a" / "1.png", (60, 64))
    cut = (tmp_path / "a" / "1.png").read_bytes()
    (tmp_path / "a" / "1.png").write_bytes(cut[: len(cut) // 2])
    picture(tmp_path / "a" / "2.png")
    data = opened(tmp_path, image=None, bad="skip")
    assert data.inputs[0].shape == (3, 20, 24) and len(skipped(data)) == 2
    told = opened(tmp_path, image=None, bad="skip", known_bad=skipped(data))
    assert told.inputs == data.inputs
    with pytest.raises(BadFile, match=r"a/0.png: has 1 channels"):  # told of none, it must not find others by itself
        opened(tmp_path, image=None, bad="skip", known_bad=[])


def test_all_files_bad(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "0.png", channels=1)
    with pytest.raises(ValueError, match=r"all 1 files are bad, the first: .*0.png: has 1 channels"):
        opened(tmp_path, bad="skip")


def test_alpha_is_left_out_and_other_bands_are_not(tmp_path: Path) -> None:
    four = RNG.integers(0, 256, (20, 24, 4), np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(four).save(tmp_path / "a" / "0.png")
    data = opened(tmp_path)
    assert torch.equal(
        (data.read(0, "input") * 255).round().byte(), torch.from_numpy(four[:, :, :3].transpose(2, 0, 1).copy())
    )
    assert opened(tmp_path, channels=4).read(0, "input").shape == (4, 20, 24)
    tifffile.imwrite(tmp_path / "a" / "1.tif", four, photometric="rgb", extrasamples=("unspecified",))
    with pytest.raises(BadFile, match=r"1.tif: has 4 channels, and 3 are asked for"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda root: None, "holds no class folders"),
        (lambda root: picture(root / "0.png"), "holds no class folders"),
        (lambda root: (root / "a").mkdir(), "a holds no images: bring .png"),
        (lambda root: [picture(root / c / "0.png") for c in "abc"], r"has 3 classes \(a, b, c, ...\), the model 2"),
    ],
)
def test_folders_that_cannot_be(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path)  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        opened(tmp_path)


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        opened(tmp_path / "nowhere")
    classes_at(tmp_path)
    for options, message in (
        ({"bad": "ignore"}, "'ignore' is not a policy for bad files: use stop or skip"),
        ({"split": "test"}, "'test' is not a split: use train or evaluation"),
        ({"task": "driving"}, "'driving' is not a task"),
        ({"level": 3}, "0.jpg: has no pyramid, so there is no level 3"),
    ):
        with pytest.raises(ValueError, match=message):
            opened(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="'films' is not a kind of data: use folder, cifar10, cifar100, synthetic, lesion"
    ):
        open_dataset("films", classes=2)
    with pytest.raises(ValueError, match="give their folder as --data DIR"):
        open_dataset("folder", classes=2)


def masks_at(root: Path, values: np.ndarray, suffix: str = ".png", name: str = "x") -> None:
    picture(root / "images" / "x.ome.tif" if suffix == ".tif" else root / "images" / "x.jpg", values.shape)
    path = root / "masks" / f"{name}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, values, tile=(16, 16)) if suffix == ".tif" else Image.fromarray(values).save(path)


@pytest.mark.parametrize("suffix, name", [(".png", "x"), (".tif", "x"), (".png", "x_mask")])
def test_masks(tmp_path: Path, suffix: str, name: str) -> None:
    values = RNG.integers(0, 4, (20, 24)).astype(np.uint8)
    values[3, 4] = 255
    masks_at(tmp_path, values, suffix, name)
    data = opened(tmp_path, task="segmentation", classes=4)
    expected = torch.from_numpy(values.astype(np.int64))
    expected[3, 4] = IGNORED
    assert data.targets[0].shape == (20, 24)
    assert torch.equal(data.read(0, "target"), expected)
    assert torch.equal(data.read(0, "target", ((2, 9), (1, 20))), expected[2:9, 1:20])


def test_masks_of_black_and_white_are_two_classes(tmp_path: Path) -> None:
    values = (RNG.integers(0, 2, (20, 24)) * 255).astype(np.uint8)
    masks_at(tmp_path, values)
    assert torch.equal(
        opened(tmp_path, task="segmentation").read(0, "target"), torch.from_numpy((values > 0).astype(np.int64))
    )


def test_bad_masks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no folder images"):
        opened(tmp_path, task="segmentation")
    masks_at(tmp_path, np.full((20, 24), 7, np.uint8))
    picture(tmp_path / "images" / "y.png")
    with pytest.raises(BadFile, match=r"y.png: has no mask of the same name"):
        opened(tmp_path, task="segmentation")
    data = opened(tmp_path, task="segmentation", bad="skip", classes=8)
    assert len(data) == 1 and (data.read(0, "target") == 7).all()
    with pytest.raises(ValueError, match=r"all 2 files are bad, .*x.png: has class 7 at a pixel"):
        opened(tmp_path, task="segmentation", bad="skip", classes=7)
    (tmp_path / "images" / "y.png").rename(tmp_path / "images" / "y.away")
    with pytest.raises(BadFile, match=r"x.png: has class 7 at a pixel, and there are 7 classes"):
        opened(tmp_path, task="segmentation", classes=7).read(0, "target")
    (tmp_path / "images" / "y.away").rename(tmp_path / "images" / "y.png")
    picture(tmp_path / "masks" / "y.png", (20, 23), channels=1)
    with pytest.raises(BadFile, match=r"masks/y.png: has 20 x 23 pixels, its image 20 x 24"):
        opened(tmp_path, task="segmentation")
    picture(tmp_path / "masks" / "y.png")
    with pytest.raises(BadFile, match=r"masks/y.png: has 3 channels: a mask has one"):
        opened(tmp_path, task="segmentation")
    listing, _ = list_masks(tmp_path, "train")
    assert [Path(m).name for m in listing.masks] == ["x.png", "y.png"]


@pytest.mark.parametrize("kind, value", [(np.int16, -1), (np.float32, 0.5), (np.float32, np.nan)])
def test_what_is_no_class_in_a_mask_is_refused(tmp_path: Path, kind: type, value: float) -> None:
    masks_at(tmp_path, np.zeros((20, 24), np.uint8), ".tif")
    mask = np.zeros((20, 24), kind)
    mask[3, 4] = value
    tifffile.imwrite(tmp_path / "masks" / "x.tif", mask)
    with pytest.raises(BadFile, match=f"x.tif: has class {value} at a pixel, and there are 4 classes"):
        opened(tmp_path, task="segmentation", classes=4).read(0, "target")


def test_hidden_folders_and_links_upwards_are_passed_over(tmp_path: Path) -> None:
    root = classes_at(tmp_path)
    before = len(opened(root, evaluation_fraction=0))
    folder = next(path for path in sorted(root.iterdir()) if path.is_dir())
    (folder / ".ipynb_checkpoints").mkdir()
    picture(folder / ".ipynb_checkpoints" / "a.png")
    (folder / "above").symlink_to(root)
    (folder / "itself").symlink_to(folder)
    assert len(opened(root, evaluation_fraction=0)) == before


def test_a_pyramids_level_with_a_mask_of_its_size(tmp_path: Path) -> None:
    whole = RNG.integers(0, 256, (40, 48, 3), np.uint8)
    (tmp_path / "images").mkdir()
    with tifffile.TiffWriter(tmp_path / "images" / "x.tif") as writer:
        writer.write(whole, tile=(16, 16), photometric="rgb", subifds=1)
        writer.write(whole[::2, ::2], tile=(16, 16), photometric="rgb", subfiletype=1)
    picture(tmp_path / "masks" / "x.png", channels=1, value=1)
    data = opened(tmp_path, task="segmentation", level=1)
    assert torch.equal(
        (data.read(0, "input") * 255).round().byte(), torch.from_numpy(whole[::2, ::2].transpose(2, 0, 1).copy())
    )
    assert (data.read(0, "target") == 1).all()
