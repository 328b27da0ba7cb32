"""The Python of the documents about training runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halocline.cli import main

DOCUMENTS = Path(__file__).parents[2] / "docs"


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCUMENTS / document).read_text(encoding="utf-8"), re.DOTALL)


def test_training_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("training.md")
    exec(block, {})
    assert capsys.readouterr().out.startswith("4 ")
    assert (tmp_path / "runs" / "mine" / "checkpoints" / "step-000004").is_dir()


def test_exported_weights_in_a_plain_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = "resnet-v1-8 --image-size 16 --batch-size 2 --samples 4 --steps 1 --device cpu --run-dir runs/first"
    assert main(["train", *flags.split()]) == 0
    assert main(["export", "runs/first", "--out", "first.safetensors"]) == 0
    (block,) = blocks("checkpoints.md")
    exec(block, {})
