"""CIFAR-10's binary files, as they are described by those who publish them."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from halocline.data import BadFile, open_dataset
from halocline.data.dataset import bytes_read

RNG = np.random.default_rng(0)


def batch(path: Path, records: int) -> tuple[np.ndarray, np.ndarray]:
    """A file of records: one byte of class, then 1024 red, 1024 green and 1024 blue bytes, row by row."""
    labels = RNG.integers(0, 10, records, np.uint8)
    images = RNG.integers(0, 256, (records, 3, 32, 32), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, images)))
    return labels, images


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_records(tmp_path: Path, inside: str) -> None:
    parts = [batch(tmp_path / inside / f"data_batch_{number}.bin", 5 + number) for number in (1, 2, 3)]
    test = batch(tmp_path / inside / "test_batch.bin", 4)
    train = open_dataset("cifar", tmp_path, classes=10, mean=(0.5,), std=(0.25,))
    evaluation = open_dataset("cifar", tmp_path, classes=10, split="evaluation")
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


def test_without_a_test_file_a_fraction_is_kept(tmp_path: Path) -> None:
    batch(tmp_path / "data_batch_1.bin", 20)
    splits = [open_dataset("cifar", tmp_path, classes=10, split=s) for s in ("train", "evaluation")]
    assert [len(s) for s in splits] == [18, 2]


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data_batch_1.bin is missing: unpack CIFAR-10's binary version"):
        open_dataset("cifar", tmp_path, classes=10)
    batch(tmp_path / "data_batch_1.bin", 3)
    batch(tmp_path / "data_batch_3.bin", 3)
    with pytest.raises(ValueError, match=r"data_batch_2.bin is missing"):
        open_dataset("cifar", tmp_path, classes=10)
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(b"\1" * 3072)
    with pytest.raises(BadFile, match=r"data_batch_2.bin: has 3072 bytes, .* records of 3073"):
        open_dataset("cifar", tmp_path, classes=10)
    path.write_bytes(b"\12" * 3073)
    with pytest.raises(BadFile, match=r"data_batch_2.bin: record 0 has class 10"):
        open_dataset("cifar", tmp_path, classes=10)
    batch(path, 1)
    for options, message in (
        ({"classes": 2}, "CIFAR-10 has 10 classes, the model 2: use --num-classes 10"),
        ({"classes": 10, "image": (64, 64)}, r"images of 32 x 32, and \(64, 64\) is asked for: use --image-size 32"),
        ({"classes": 10, "channels": 1}, "CIFAR-10 has 3 channels, and 1 are asked for"),
        ({"classes": 10, "task": "segmentation"}, "has a class per image, not per pixel"),
        ({"classes": 10, "task": "causal"}, "cifar data is images, and causal is asked of tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            open_dataset("cifar", tmp_path, **options)
