"""CIFAR-10 and CIFAR-100, binary and as torchvision leaves them, by files written byte by byte as those published."""

from __future__ import annotations

import pickle
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from halocline.data import BadFile, open_dataset
from halocline.data.cifar import EDITIONS, Cifar
from halocline.data.dataset import bytes_read
from harness.cifar import array, write_binary, write_pickle


@pytest.mark.parametrize(
    ("inside", "suffix"),
    [("", ".bin"), ("cifar-10-batches-bin", ".bin"), ("", ""), ("cifar-10-batches-py", "")],
)
def test_cifar_10(tmp_path: Path, inside: str, suffix: str) -> None:
    write = write_binary if suffix else write_pickle
    folder = tmp_path / inside
    parts = [write(folder / f"data_batch_{number}{suffix}", 5 + number, seed=number) for number in (1, 2, 3)]
    test = write(folder / f"test_batch{suffix}", 4)
    train = open_dataset("cifar10", tmp_path, classes=10, mean=(0.5,), std=(0.25,))
    evaluation = open_dataset("cifar10", tmp_path, classes=10, split="evaluation")
    assert (len(train), len(evaluation)) == (6 + 7 + 8, 4)
    labels, images = (np.concatenate(x) for x in zip(*parts))
    for sample in (0, 5, 6, 12, 13, 20):
        assert train.read(sample, "target") == labels[sample]
        expected = (torch.from_numpy(images[sample]).float() / 255 - 0.5) / 0.25
        assert torch.equal(train.read(sample, "input"), expected)
        assert torch.equal(train.read(sample, "input", ((3, 19), (16, 32))), expected[:, 3:19, 16:32])
    assert evaluation.read(3, "target") == test[0][3]
    assert bytes_read(evaluation) == 0
    assert torch.equal(pickle.loads(pickle.dumps(train)).read(9, "input"), train.read(9, "input"))


@pytest.mark.parametrize("suffix", ["", ".bin"])
def test_cifar_100_has_its_fine_classes(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / ("cifar-100-binary" if suffix else "cifar-100-python")
    options: dict[str, Any] = {"head": b"\7"} if suffix else {"key": "fine_labels"}
    write = write_binary if suffix else write_pickle
    labels, images = write(folder / f"train{suffix}", 30, classes=100, **options)
    write(folder / f"test{suffix}", 3, classes=100, seed=1, **options)
    assert labels.max() > 10
    train = open_dataset("cifar100", tmp_path, classes=100)
    assert (len(train), train.classes) == (30, 100)
    assert [int(train.read(sample, "target")) for sample in range(30)] == labels.tolist()
    assert torch.equal(train.read(7, "input"), torch.from_numpy(images[7]).float() / 255)
    assert len(open_dataset("cifar100", tmp_path, classes=100, split="evaluation")) == 3
    with pytest.raises(ValueError, match=r"holds CIFAR-100 and no CIFAR-10: use --data cifar100:"):
        open_dataset("cifar10", tmp_path, classes=10)


def test_what_python_3_writes_is_read_too(tmp_path: Path) -> None:
    """numpy 2 names its modules otherwise, and Python 3 writes bytes as words in protocol 2."""
    images = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
    batch = {b"labels": [1, 2, 3], "data": images}
    for protocol in (2, 3, 4):
        path = tmp_path / "data_batch_1"
        path.write_bytes(pickle.dumps(batch, protocol))
        data = open_dataset("cifar10", tmp_path, classes=10, evaluation_fraction=0)
        expected = torch.from_numpy(images.reshape(3, 3, 32, 32)).float() / 255
        assert torch.equal(torch.stack([data.read(sample, "input") for sample in range(3)]), expected)


def test_pixels_stay_on_disk(tmp_path: Path) -> None:
    write_pickle(tmp_path / "data_batch_1", 4)
    data = Cifar([tmp_path / "data_batch_1"], EDITIONS["cifar10"])
    base: Any = data._images[0]
    while isinstance(base, np.ndarray):
        base = base.base
    assert type(memoryview(base).obj).__name__ == "mmap"


@pytest.mark.parametrize("image", [(64, 64), (48, 80), (20, 20)])
def test_images_are_resized_as_torchvision_does(tmp_path: Path, image: tuple[int, int]) -> None:
    """now-dl's Resize((n, n)) and ToTensor are Pillow's resize, divided by 255."""
    _, images = write_pickle(tmp_path / "data_batch_1", 3)
    data = open_dataset("cifar10", tmp_path, classes=10, image=image, evaluation_fraction=0)
    assert data.inputs[0].shape == (3, *image)
    picture = Image.fromarray(images[1].transpose(1, 2, 0)).resize(image[::-1], Image.Resampling.BILINEAR)
    whole = data.read(1, "input")
    assert torch.equal(whole, torch.from_numpy(np.asarray(picture).transpose(2, 0, 1).copy()).float() / 255)
    half, third = image[0] // 2, image[1] // 3
    for rows in ((0, half), (half, image[0])):
        for columns in ((0, third), (third, image[1])):
            assert torch.equal(data.read(1, "input", (rows, columns)), whole[:, slice(*rows), slice(*columns)])
    assert bytes_read(data) < 3 * 3072, "a tile reads what it shows"


def test_without_a_test_file_a_fraction_is_kept(tmp_path: Path) -> None:
    write_binary(tmp_path / "data_batch_1.bin", 20)
    splits = [open_dataset("cifar10", tmp_path, classes=10, split=s) for s in ("train", "evaluation")]
    assert [len(s) for s in splits] == [18, 2]


def test_an_archive_that_is_not_unpacked_is_answered_with_the_command(tmp_path: Path) -> None:
    root = tmp_path / "my data"
    write_pickle(tmp_path / "cifar-10-batches-py" / "data_batch_1", 3)
    root.mkdir()
    archive = root / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    said = f"{archive} is not unpacked: run tar -xzf '{archive}' -C '{root}', and give {root} as the folder"
    for given in (root, archive, root / "cifar-10-batches-py"):
        with pytest.raises(ValueError) as caught:
            open_dataset("cifar10", given, classes=10)
        assert str(caught.value) == said
    subprocess.run(said.partition("run ")[2].partition(", and")[0], shell=True, check=True)
    for given in (root, root / "cifar-10-batches-py"):
        assert len(open_dataset("cifar10", given, classes=10, evaluation_fraction=0)) == 3


def test_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no CIFAR-10: unpack cifar-10-binary.tar.gz or cifar-10-python.tar.gz"):
        open_dataset("cifar10", tmp_path, classes=10)
    with pytest.raises(ValueError, match=r"nowhere is no folder with CIFAR-10: unpack "):
        open_dataset("cifar10", tmp_path / "nowhere", classes=10)
    for name in ("data_batch_1", "data_batch_3", "test_batch"):
        write_pickle(tmp_path / name, 3)
    with pytest.raises(ValueError, match=r"data_batch_2 is missing: take the archive"):
        open_dataset("cifar10", tmp_path, classes=10)
    assert len(open_dataset("cifar10", tmp_path, classes=10, split="evaluation")) == 3
    write_pickle(tmp_path / "data" / "cifar-100-python" / "train", 3)
    with pytest.raises(
        ValueError, match=r"python holds no images: .*; or read the CIFAR-100 in it by --data cifar100:.*/data$"
    ):
        open_dataset("folder", tmp_path / "data", classes=10)


def test_binary_files_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(b"\1" * 3072)
    with pytest.raises(BadFile, match=r"data_batch_1.bin: has 3072 bytes, .* records of 3073"):
        open_dataset("cifar10", tmp_path, classes=10)
    path.write_bytes(b"\12" * 3073)
    with pytest.raises(BadFile, match=r"data_batch_1.bin: record 0 has class 10, and CIFAR-10 has 10 classes, from 0"):
        open_dataset("cifar10", tmp_path, classes=10)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"data": array((2, 3071), bytes(6142))}, "has 2 x 3071 as data, and CIFAR-10 has 3072 bytes for each image"),
        ({"data": array((6144,), bytes(6144))}, "has 6144 as data"),
        ({"data": array((0, 3072), b"")}, "has 0 x 3072 as data"),
        ({"data": b"K\1"}, "has no array as data"),
        ({"labels": b"](K\1e"}, "has 1 labels for 2 images"),
        ({"labels": b"](K\1Ne"}, "has labels that are not a list of whole numbers"),
        ({"labels": b"](K\1\x88e"}, "has labels that are not a list of whole numbers"),
        ({"labels": b"](K\1K\x0ae"}, "record 1 has class 10, and CIFAR-10 has 10 classes, from 0 on"),
        ({"labels": b"](K\1J\xff\xff\xff\xffe"}, "record 1 has class -1"),
        ({"key": "coarse_labels"}, "has no labels"),
    ],
)
def test_pickles_that_are_no_batch(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    write_pickle(tmp_path / "data_batch_1", 2, **parts)
    with pytest.raises(BadFile) as caught:
        open_dataset("cifar10", tmp_path, classes=10)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'data_batch_1'}: {message}") and "\n" not in said
    assert said.endswith("take the archive from those who publish it, and unpack it again")


def test_a_model_that_does_not_suit(tmp_path: Path) -> None:
    write_pickle(tmp_path / "data_batch_1", 3)
    for options, message in (
        ({"classes": 2}, "CIFAR-10 has 10 classes, the model 2: use --num-classes 10"),
        ({"classes": 10, "channels": 1}, "CIFAR-10 has 3 channels, and 1 are asked for"),
        ({"classes": 10, "task": "segmentation"}, "CIFAR-10 has a class per image, not per pixel"),
        ({"classes": 10, "task": "causal"}, "cifar10 data is images, and causal is asked of tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            open_dataset("cifar10", tmp_path, **options)
