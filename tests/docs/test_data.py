"""docs/data.md: its dataset is one, and it names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from halocline.data import Augment, Loader, Sampler
from halocline.data.folder import SPLIT_FOLDERS
from halocline.data.objective import OBJECTIVES
from halocline.tiling.patchwork import ReadBoxes
from harness.cifar import write_pickle
from harness.processes import program, typed

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_dataset_of_the_page_loads() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    data = names["Squares"]()
    box = ((0, 4), (0, 1), (0, 32), (32, 64))
    loader = Loader(data, Sampler(len(data), 4), lambda n: ReadBoxes([[box]], [[((0, 4),)]]))
    step = loader.next()
    ((_, images),), ((_, labels),) = step.inputs[0].pieces, step.target.pieces
    assert images.shape == (4, 1, 32, 32)
    assert labels.tolist() == [sample % 2 for sample in step.batch.samples]
    assert torch.equal(images[:, 0, 0, 0], torch.tensor(step.batch.samples) / 1000)


@pytest.mark.slow
def test_the_commands_of_cifar_run(tmp_path: Path) -> None:
    write_pickle(tmp_path / "DIR" / "cifar-10-batches-py" / "data_batch_1", 20)
    ours, nowdls = re.findall(r"^    (.*cifar10:DIR.*|.*--datapath DIR.*)$", TEXT, re.MULTILINE)
    (ended,) = typed([ours.replace("110", "20")], tmp_path)
    assert ended.code == 0 and "done: 2 steps" in ended.err + ended.out, ended
    script, *words = nowdls.removeprefix("python ").split()
    ended = program(ROOT / script, *words, "--split-size=1", "--steps=1", directory=tmp_path)
    assert ended.code == 0 and "Epoch: 0 images per sec:" in ended.out, ended


def test_every_word_is_on_the_page() -> None:
    words = [*(field for field in vars(Augment()) if field != "pad"), "pad=N", "colour=X", *OBJECTIVES]
    words += [name for folders in SPLIT_FOLDERS.values() for name in folders]
    missing = [word for word in words if f"`{word}" not in TEXT and f"{word}`" not in TEXT and f"/{word}/" not in TEXT]
    assert not missing
