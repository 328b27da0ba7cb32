"""Trials: batches made up as a model's task wants them, its loss, and what is said of a model that fails by itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from halocline.models.losses import token_loss
from halocline.models.model import Model
from halocline.plan import Plan, Stage
from halocline.runtime import RankFailed
from halocline.train.trial import Trial, run, verify

ALONE = Plan.from_flags(split_size=1, parts=3, layers=8)
TINY: dict[str, Any] = {"layers": 1, "hidden": 8, "heads": 2, "vocab": 11, "seq": 5}


def trial(model: str = "small-cnn", **fields: Any) -> Trial:
    return Trial(model, ALONE, (16, 12), 7, **fields)


def test_losses_follow_the_output() -> None:
    made = trial()
    assert made.chosen_loss((2, 10)) is F.cross_entropy
    assert made.chosen_loss((2, 5, 8, 8)) is F.cross_entropy
    assert made.chosen_loss((2,)) is F.mse_loss
    assert made.batches((2, 5, 8, 6))[0][1].shape == (7, 8, 6)
    assert made.batches((2,))[0][1].dtype == torch.float64
    with pytest.raises(ValueError, match="cross-entropy, mse"):
        trial(loss="hinge").chosen_loss((2, 10))


def test_a_model_has_its_own_loss() -> None:
    assert trial("gpt3-small", options=TINY).chosen_loss((2, 5, 11)) is token_loss


def test_words_suit_the_task() -> None:
    (words, targets), *_ = trial("gpt3-small", options=TINY).batches(())
    assert words.shape == targets.shape == (7, 5)
    assert 0 <= int(targets.min()) and int(targets.max()) < 11
    (words, targets), *_ = trial("bert-base-uncased", options=TINY).batches(())
    predicted = (targets != -100).sum(-1)
    assert len(predicted.unique()) > 1, "samples differ in how many words they predict"
    (words, targets), *_ = trial("t5-small", options=TINY).batches(())
    assert len(words) == 2


def test_a_trial_on_one_process() -> None:
    plan = Plan.from_flags(split_size=1, parts=2, layers=4)
    found = run(Trial("gpt3-small", plan, (), 4, options=TINY))
    assert found.worst < 1e-12
    assert "0.tokens.weight" in found.gradients
    assert "3.logits.weight" not in found.gradients, "it is the table, under another name"


def test_a_rank_that_fails_while_others_wait_is_told_as_an_error_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RankFailed("rank 2 failed in forward: ValueError: 7 tokens do not divide")

    monkeypatch.setattr("halocline.train.trial.run_local", fail)
    with pytest.raises(ValueError, match="rank 2 failed in forward: ValueError: 7 tokens do not divide"):
        run(Trial("gpt3-small", Plan.from_flags(split_size=1, parts=2, layers=4), (), 4, options=TINY))


def test_a_model_that_fails_on_one_device_is_told_apart() -> None:
    class Trialled(Trial):
        def made(self) -> Model:
            return Model("x:y", nn.Sequential(nn.Flatten(), nn.Linear(7, 4)))

    with pytest.raises(ValueError, match="layer 1 of x:y fails on one device"):
        Trialled("x:y", ALONE, (8, 8), 4).output_shape()

    class Worded(Trial):
        def made(self) -> Model:
            return Model("x:y", nn.Sequential(nn.Embedding(7, 4)))

    with pytest.raises(ValueError, match="bare layers are given images: for words return a Model with its task"):
        Worded("x:y", ALONE, (8, 8), 4).output_shape()


def test_a_module_that_draws_random_numbers_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first model made of it had other weights than the next, so a process of a trial had not the reference's."""
    (tmp_path / "drawing_model.py").write_text(
        "import torch\nfrom torch import nn\n\nsomething = torch.randn(7)\n\n\n"
        "def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trial = Trial("drawing_model:make", Plan.uniform(1), (2, 2), samples=2)
    first, second = trial.made().layers, trial.made().layers
    assert isinstance(first, torch.nn.Sequential) and isinstance(second, torch.nn.Sequential)
    assert torch.equal(first[1].weight, second[1].weight)


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def test_verify_as_a_function() -> None:
    """Of layers and a batch at hand, which stay as they are."""
    plan = Plan((Stage((0, 3), tiles=(1, 2)), Stage((3, 5))), "1f1b", 2)
    net, images, labels = network(), torch.randn(4, 3, 9, 8), torch.arange(4)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    optimizer = partial(torch.optim.AdamW, lr=0.01)
    found = verify(plan, net, images, labels, loss=F.cross_entropy, optimizer=optimizer, steps=1)
    assert 0 < found.worst < 1e-10
    assert set(found.gradients) == {"0.weight", "1.weight", "1.bias"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_what_cannot_go_to_processes_is_told() -> None:
    with pytest.raises(ValueError, match=r"cannot go to other processes .*: use functions and classes of a module in"):
        verify(Plan.uniform(1), [lambda: nn.Linear(2, 2)], torch.randn(2, 2), torch.zeros(2))
