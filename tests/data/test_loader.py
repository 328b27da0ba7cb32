"""The loader: the pieces asked for and no others, read ahead by real worker processes, resumed exactly."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch

from halocline.data import BadFile, Dataset, Loader, Sampler, Step, open_dataset, parse_augment
from halocline.data.loader import lost_worker
from halocline.tiling.boxes import Box, shape
from halocline.tiling.patchwork import ReadBoxes


def everything(samples: int) -> ReadBoxes:
    return ReadBoxes([[((0, samples), (0, 3), (0, 16), (0, 16))]], [[((0, samples),)]])


def nothing(samples: int) -> ReadBoxes:
    return ReadBoxes([[]], [[]])


def images(samples: int = 22, **options: object) -> Dataset:
    return open_dataset(
        "synthetic", classes=5, image=(16, 16), samples=samples, augment=parse_augment("flip,rotate,colour"), **options
    )  # type: ignore[arg-type]


def steps(loader: Loader, count: int) -> Iterator[Step]:
    """The next steps, over the ends of epochs, as a training loop takes them."""
    while True:
        for step in loader:
            yield step
            count -= 1
            if not count:
                return


def same(a: Step, b: Step) -> bool:
    return a.batch == b.batch and all(
        x[0] == y[0] and torch.equal(x[1], y[1])
        for p, q in ((a.inputs, b.inputs), (a.targets, b.targets))
        for many, more in zip(p, q)
        for x, y in zip(many.pieces, more.pieces)
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_pieces_are_parts_of_the_batch(workers: int) -> None:
    data = images()
    boxes: list[Box] = [
        ((0, 2), (0, 3), (0, 8), (8, 16)),
        ((1, 4), (1, 2), (5, 16), (0, 16)),
        ((2, 2), (0, 3), (0, 8), (0, 8)),
        ((0, 2), (0, 3), (0, 8), (8, 16)),  # asked for twice, read once
    ]
    loader = Loader(data, Sampler(len(data), 4), lambda n: ReadBoxes([boxes], [[((1, 3),)]]), workers=workers)
    count = 0
    for step in loader:
        whole = torch.stack([data.read(s, "input", epoch=step.batch.epoch) for s in step.batch.samples])
        labels = torch.stack([data.read(s, "target") for s in step.batch.samples])
        assert [box for box, _ in step.inputs[0].pieces] == boxes[:3]
        for box, piece in step.inputs[0].pieces:
            assert piece.shape == shape(box)
            assert torch.equal(piece, whole[tuple(slice(*i) for i in box)])
        assert torch.equal(step.targets[0].pieces[0][1], labels[1:3])
        assert len(step.batch.samples) == step.inputs[0].shape[0] == 4
        count += 1
    assert count == len(loader) == 5
    loader.close()


def test_workers_change_nothing_and_neither_does_a_pause() -> None:
    def loader(workers: int) -> Loader:
        return Loader(images(), Sampler(22, 4, seed=7), everything, workers=workers)

    straight = list(steps(loader(0), 13))
    assert [s.batch.epoch for s in straight] == [0] * 5 + [1] * 5 + [2] * 3
    assert not same(straight[0], straight[5])
    first = loader(2)
    before = list(steps(first, 7))
    state = first.sampler.state()
    first.close()
    second = loader(1)
    second.sampler.load(state)
    after = list(steps(second, 6))
    assert all(same(a, b) for a, b in zip(straight, before + after))
    second.sampler.load(state)  # back again: what was read ahead is void
    assert all(same(a, b) for a, b in zip(after, steps(second, 6)))
    second.close()


def test_who_needs_nothing_moves_on_all_the_same() -> None:
    samplers = [Sampler(22, 4), Sampler(22, 4)]
    for sampler, reads in zip(samplers, (everything, nothing)):
        for step in steps(Loader(images(), sampler, reads), 8):
            assert bool(step.inputs[0].pieces) == (reads is everything)
    assert samplers[0].state() == samplers[1].state()


def test_a_smaller_last_batch() -> None:
    loader = Loader(images(10), Sampler(10, 4, drop_last=False, shuffle=False), everything, across_epochs=False)
    for _ in range(2):
        assert [step.inputs[0].pieces[0][1].shape[0] for step in loader] == [4, 4, 2]


def test_reading_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    loader = Loader(images(), Sampler(22, 4), everything, workers=1)
    list(loader)
    assert torch.equal(torch.rand(4), expected)
    loader.close()


def folder(root: Path) -> Path:
    (root / "a").mkdir()
    for number in range(4):
        image = np.random.default_rng(number).integers(0, 256, (256, 256, 3), np.uint8)
        tifffile.imwrite(root / "a" / f"{number}.tif", image, tile=(64, 64), compression="zlib", photometric="rgb")
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_bytes_are_counted_per_step(tmp_path: Path, workers: int) -> None:
    data = open_dataset("folder", folder(tmp_path), classes=2, image=(256, 256), evaluation_fraction=0.0)

    data.read(0, "input")  # in this process, before there are workers

    def reading(parts: int) -> int:
        box = ((0, 2), (0, 3), (0, 256 // parts), (0, 256 // parts))
        loader = Loader(data, Sampler(4, 2), lambda n: ReadBoxes([[box]], [[]]), workers=workers)
        read = [step.bytes_read for step in loader]
        assert loader.bytes_read == sum(read)
        loader.close()
        return loader.bytes_read

    whole = reading(1)
    assert whole > 4 * 256 * 256 * 3 * 0.9
    assert reading(2) < 0.3 * whole
    assert reading(4) < 0.1 * whole


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_file_is_named_once_and_plainly(tmp_path: Path, workers: int) -> None:
    data = open_dataset("folder", folder(tmp_path), classes=2, image=(256, 256), evaluation_fraction=0.0)
    path = tmp_path / "a" / "2.tif"
    path.write_bytes(path.read_bytes()[:2000])
    whole = ((0, 1), (0, 3), (0, 256), (0, 256))
    sampler = Sampler(4, 1, shuffle=False)
    loader = Loader(data, sampler, lambda n: ReadBoxes([[whole]], [[]]), workers=workers)
    with pytest.raises(BadFile) as caught:
        list(loader)
    assert str(caught.value).startswith(f"{path}: cannot be read (")
    assert "\n" not in str(caught.value)
    assert sampler.position == 2  # the two before it were handed out
    with pytest.raises(BadFile):
        loader.next()  # no batch is passed over because somebody tries again
    loader.close()


def test_workers_leave_ctrl_c_to_the_training_process() -> None:
    data = images()
    loader = Loader(data, Sampler(len(data), 4), everything, workers=1)
    loader.next()
    workers = [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGINT)
        os.kill(worker, signal.SIGTERM)
    assert len(list(steps(loader, 6))) == 6
    loader.close()


def test_mistakes() -> None:
    data = images()
    with pytest.raises(ValueError, match="-1 workers cannot read"):
        Loader(data, Sampler(22, 4), everything, workers=-1)
    with pytest.raises(ValueError, match="boxes of 2 input tensors are asked for, the data has 1 per sample"):
        Loader(data, Sampler(22, 4), lambda n: ReadBoxes([[], []], [[]])).next()
    with pytest.raises(ValueError, match=r"does not fit targets of shape \(\) per sample"):
        Loader(data, Sampler(22, 4), lambda n: ReadBoxes([[]], [[((0, 2), (0, 4))]])).next()


def test_a_worker_that_is_gone_is_told_with_a_fix() -> None:
    """It was pages of torch's."""
    said = lost_worker(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "))
    assert (
        said is not None and "(worker (pid 7) is killed by signal: Killed): " in said and "use fewer --workers" in said
    )
    assert lost_worker(RuntimeError("something else")) is lost_worker(ValueError("DataLoader worker")) is None
