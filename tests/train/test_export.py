"""What is exported loads into a plain model of one device and computes what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from halocline.cli import main
from halocline.models.model import tie
from halocline.runtime.layers import one_device
from halocline.train import Settings, Trainer
from halocline.train.checkpoint import complete
from halocline.train.export import export


def trained(directory: Path, **settings: Any) -> Trainer:
    given = {"device": "cpu", "batch_size": 4, "samples": 8, "steps": 2, "run_dir": str(directory), **settings}
    trainer = Trainer(Settings.of(**given))
    trainer.fit()
    return trainer


def test_an_image_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trained(tmp_path / "run", model="small-cnn", image_size="16")
    out = tmp_path / "out" / "model.safetensors"
    assert main(["export", str(tmp_path / "run"), "--out", str(out)]) == 0
    assert "of step 2" in capsys.readouterr().out
    plain = one_device(trainer.model.layers, seed=77)
    plain.load_state_dict(load_file(out), strict=True)
    known = nn.Sequential(*[layer for _, layer in trainer.engine.modules[0]])
    x = torch.randn(3, 3, 16, 16)
    assert torch.equal(plain.eval()(x), known.eval()(x))
    assert [p.name for p in out.parent.iterdir()] == ["model.safetensors"]


def test_a_language_model_whose_head_is_its_table(tmp_path: Path) -> None:
    trainer = trained(
        tmp_path / "run", model="gpt3-small", layers=1, hidden=16, heads=2, vocab=40, seq=8, optimizer="adamw", lr=0.01
    )
    assert trainer.model.tied
    export(str(tmp_path / "run"), str(tmp_path / "model.safetensors"))
    plain = tie(one_device(trainer.model.layers, seed=77), trainer.model.tied)
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    known = nn.Sequential(*[layer for _, layer in trainer.engine.modules[0]])
    words = torch.randint(0, 40, (2, 8))
    assert torch.equal(plain.eval()(words), known.eval()(words))
    assert "perplexity" in trainer.scores


def test_hugging_faces_layout_there_and_back(tmp_path: Path) -> None:
    small = {"layers": 1, "hidden": 16, "heads": 2, "vocab": 40, "seq": 8}
    first = trained(tmp_path / "run", model="gpt3-small", to_hf=str(tmp_path / "during"), **small)
    assert main(["export", str(tmp_path / "run"), "--to-hf", str(tmp_path / "after")]) == 0
    for folder in ("during", "after"):
        where = {"from_hf": str(tmp_path / folder), "run_dir": str(tmp_path / f"from {folder}"), "device": "cpu"}
        settings = Settings.of(model="gpt3-small", **where, **small)  # type: ignore[arg-type]
        other = Trainer(settings)
        for (name, a), (_, b) in zip(first.engine.named_parameters(), other.engine.named_parameters()):
            assert torch.equal(a, b), name


def test_hugging_faces_layout_of_a_run_that_keeps_no_checkpoints(tmp_path: Path) -> None:
    small = {"model": "gpt3-small", "layers": 1, "hidden": 16, "heads": 2, "vocab": 40, "seq": 8}
    folder = str(tmp_path / "weights")
    first = trained(tmp_path / "run", to_hf=folder, save_every=0, **small)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["metrics.jsonl", "plan.toml", "run.toml"]
    other = Trainer(Settings.of(from_hf=folder, run_dir=str(tmp_path / "again"), device="cpu", **small))  # type: ignore[arg-type]
    for (name, a), (_, b) in zip(first.engine.named_parameters(), other.engine.named_parameters()):
        assert torch.equal(a, b), name


def test_another_dtype_and_a_certain_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path / "run", model="small-mlp", image_size="16", save_every=1)
    first = complete(tmp_path / "run" / "checkpoints")[-1]
    assert "of step 1" in export(str(first), str(tmp_path / "a.safetensors"), "bfloat16")
    loaded = load_file(tmp_path / "a.safetensors")
    assert {t.dtype for t in loaded.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to export"),
        (["run"], "neither --out nor --to-hf"),
        (["run", "--out", "a", "--to-hf", "b"], "both --out and --to-hf"),
        (["nowhere", "--out", "a"], "nowhere holds no complete checkpoint"),
        (["run", "--out", "a", "--dtype", "int8"], "dtype = int8 is not known"),
        (["run", "--out", "run"], "run is a directory: name a file in it"),
    ],
)
def test_mistakes(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    trained(Path("run"), model="small-mlp", image_size="16", steps=1)
    capsys.readouterr()
    assert main(["export", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "run", model="small-mlp", image_size="16", save_every=1)
    file = complete(tmp_path / "run" / "checkpoints")[0] / "rank-00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "step-000002/rank-00000.safetensors is damaged" in said and "step-000001" in said
    assert not (tmp_path / "a").exists()
