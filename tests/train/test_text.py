"""Language models on plain text: each family learns, and a pipe of tensor-parallel stages learns what one device does,
goes on, and hands its weights to and takes them from Hugging Face's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halocline.plan import Plan, Stage
from halocline.train import Settings, Trainer
from halocline.train.metrics import read
from harness.checks.runs import losses, train
from harness.ranks import on_processes

TEXT = "Between fresh and salt water lies the halocline, where density changes within a few metres.\n" * 40
SIZES = {"layers": 1, "hidden": 32, "heads": 4, "vocab": 300, "seq": 24}
SETTINGS: dict[str, Any] = {"lr_schedule": "constant", "lr": 0.01, "weight_decay": 0.0, "clip": 1.0, **SIZES}
ONE = Plan((Stage((0, 4)),), "layer", 2, batch=8).to_toml()
PIPE = Plan((Stage((0, 2), tensor=2), Stage((2, 4), tensor=2)), "1f1b", 2, batch=8).to_toml()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "water.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("model", ["gpt3-small", "bert-base-uncased", "t5-small", "bloom-3b"])
def test_every_family_learns_text(model: str, text: str, tmp_path: Path) -> None:
    given = {"model": model, "data": text, "batch_size": 8, "steps": 20, "device": "cpu", "optimizer": "adamw"}
    outcome = Trainer(Settings.of(**{**SETTINGS, **given, "run_dir": str(tmp_path / "run")})).fit()
    first, last = losses(tmp_path / "run")[0][2], losses(tmp_path / "run")[-1][2]
    assert last < 0.75 * first
    assert outcome.scores["perplexity"] > 1


def test_a_pipe_of_tensor_parallel_stages(text: str, tmp_path: Path) -> None:
    """Two stages of two ranks: as one device; then three steps more from its checkpoint, and from the weights in
    Hugging Face's layout, each as one device does them."""
    transformers = pytest.importorskip("transformers")
    given = {**SETTINGS, "model": "gpt3-small", "data": text}
    runs = {name: str(tmp_path / name) for name in ("pipe", "one", "pipe-on", "one-on", "pipe-hf", "one-hf")}
    folder = str(tmp_path / "folder")
    on_processes(4, train, runs["pipe"], PIPE, **given, steps=4, to_hf=folder)
    train(runs["one"], ONE, **given, steps=4)
    scores = [
        next(e for e in read(Path(runs[name]) / "metrics.jsonl") if e["kind"] == "evaluation")
        for name in runs
        if "-" not in name
    ]
    assert scores[0]["perplexity"] == pytest.approx(scores[1]["perplexity"], rel=1e-9)

    on_processes(4, train, runs["pipe-on"], PIPE, **given, steps=7, resume=runs["one"])
    train(runs["one-on"], ONE, **given, steps=7, resume=runs["pipe"])
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).config.n_embd == SIZES["hidden"]
    on_processes(4, train, runs["pipe-hf"], PIPE, **given, steps=3, from_hf=folder)
    train(runs["one-hf"], ONE, **given, steps=3, from_hf=folder)
    for kind in ("", "-on", "-hf"):
        found = [[loss for _, _, loss, _ in losses(runs[name + kind])] for name in ("pipe", "one")]
        assert len(found[0]) == (4 if kind == "" else 3)
        assert found[0] == pytest.approx(found[1], rel=1e-9)
    # It goes on with what it had learnt (the layout keeps the dtype, so nothing is lost).
    assert losses(runs["pipe-hf"])[0][2] < losses(runs["pipe"])[0][2]


@pytest.mark.parametrize(
    ("model", "objective"), [("gpt3-small", "spans"), ("t5-small", "causal"), ("small-cnn", "masked")]
)
def test_an_objective_with_other_inputs_than_the_models(model: str, objective: str, tmp_path: Path) -> None:
    """T5 took a batch of two for its two sequences."""
    sizes = {} if model == "small-cnn" else SIZES
    given = {"model": model, "objective": objective, "run_dir": str(tmp_path / "run")}
    with pytest.raises(ValueError, match=rf"objective = {objective} and {model} is for .*: leave out --objective"):
        Trainer(Settings.of(**given, batch_size=2, steps=1, **sizes))
