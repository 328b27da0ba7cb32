"""now-dl's scripts: what their flags and defaults mean, also beside our own flags."""

from __future__ import annotations

from typing import Any

import pytest

from halocline.cli import nowdl
from halocline.plan import Plan
from halocline.train.settings import Settings


def settings(words: str, model: str = "resnet-v2-20", spatial: bool = False, gems: bool = False) -> Settings:
    found = nowdl.settings_of(model, words.split(), spatial, gems)
    assert found is not None
    return found


def plan(words: str, **script: Any) -> Plan:
    return settings(words, **script).plan.plan(layers=12)


def test_what_is_left_out_is_now_dls() -> None:
    said = settings("")
    assert (said.model.name, said.optimizer.name, said.optimizer.lr) == ("resnet-v2-20", "sgd", 0.001)
    assert (said.run.save_every, said.data.source, said.run.epochs) == (0, "synthetic", None)
    made = plan("")
    assert (made.world_size, made.batch, made.image, made.schedule) == (2, 32, (32, 32), "layer")
    assert settings("--lr 0.1 --optimizer adamw").optimizer.lr == 0.1


@pytest.mark.parametrize(
    ("words", "tiles"),
    [
        ("", [(2, 2), (1, 1)]),
        ("--slice-method vertical", [(1, 4), (1, 1)]),
        ("--num-spatial-parts 2", [(1, 2), (1, 1)]),
        ("--split-size 3 --spatial-size 2", [(2, 2), (2, 2), (1, 1)]),
        ("--stages 3 --tiles 2x2,1x2", [(2, 2), (1, 2), (1, 1)]),
    ],
)
def test_the_scripts_that_tile(words: str, tiles: list[tuple[int, int]]) -> None:
    """--slice-method without --num-spatial-parts was read over."""
    assert [stage.tiles for stage in plan(words, spatial=True).stages] == tiles


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (2, 2, 64)),
        ("--times 4", (4, 4, 128)),
        ("--times 1 --parts 3", (2, 6, 64)),
        ("--schedule 1f1b", (2, 2, 64)),
        ("--microbatches 4", (2, 4, 64)),
        ("--passes 4", (4, 4, 128)),
    ],
)
def test_the_scripts_of_gems(words: str, expected: tuple[int, int, int]) -> None:
    """--microbatches 4, which counts all passes, became 8."""
    made = plan(words, gems=True)
    assert made.schedule == "gems"
    assert (made.passes, made.microbatches, made.batch) == expected


def test_flags_of_other_scripts_are_without_effect() -> None:
    assert plan("--num-spatial-parts 4 --slice-method vertical --local-DP 2 --halo-D2 --times 4") == plan("")
    assert settings("--num-layers 3 --num-filters 16").options_of_model == {}
    assert settings("--num-layers 3 --num-filters 16", model="amoebanet-d").model.num_filters == 16


def test_help_begins_with_now_dls_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert nowdl.settings_of("resnet-v2-20", ["--help"], False, False) is None
    text = capsys.readouterr().out
    assert "now-dl's flags, and what they are called here" in text and "(default: 0.001)" in text
    assert text.index("--split-size N") < text.index("more, by group")
