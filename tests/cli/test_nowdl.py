"""now-dl's scripts: what their flags and defaults mean, also beside our own flags."""

from __future__ import annotations

from typing import Any

import pytest

from halocline.cli import nowdl
from halocline.plan import Plan
from halocline.plan.flags.dialects import FOREIGN
from halocline.plan.flags.fields import settings_of
from halocline.plan.flags.reader import spelled
from halocline.train.settings import Settings


def settings(words: str, model: str = "resnet-v2-20", spatial: bool = False, gems: bool = False) -> Settings:
    return nowdl.options_of(nowdl.Script(model, spatial, gems), words.split()).settings


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
        ("--times 1", (2, 2, 64)),
        ("--schedule gems", (2, 2, 64)),
        ("--microbatches 4", (2, 4, 64)),
        ("--passes 4", (4, 4, 128)),
    ],
)
def test_the_scripts_of_gems(words: str, expected: tuple[int, int, int]) -> None:
    """--microbatches 4, which counts all passes, became 8."""
    made = plan(words, gems=True)
    assert made.schedule == "gems"
    assert (made.passes, made.microbatches, made.batch) == expected


@pytest.mark.parametrize(
    ("words", "script", "said"),
    [
        ("--num-spatial-parts 4", {}, "--num-spatial-parts is for tiles, .*: use benchmark_resnet_sp.py"),
        ("--halo-D2", {"gems": True}, "--halo-D2 is for tiles"),
        ("--times 2", {"spatial": True}, "--times is for GEMS, .*: use benchmark_resnet_gems_master.py"),
        ("--enable-master-comm-opt", {}, "--enable-master-comm-opt is for GEMS"),
        ("--num-layers 3", {}, "--num-layers is AmoebaNet's, and this script trains resnet-v2-20: leave it out"),
        ("--hidden 64", {}, "--hidden is for other models"),
        ("--model unet", {}, "--model is for other models, and this script trains resnet-v2-20: use halocline train"),
        ("--schedule 1f1b", {"gems": True}, "--schedule is gems in this script: leave it out"),
        ("--datapath slides", {}, "--datapath slides is not read where images are synthetic: add --app 1 or --app 2"),
        ("--app 3 --datapath slides", {}, "--datapath slides is not read"),
        ("--app 2 --samples 8", {}, "--samples 8 is of synthetic images, and --app 2 has its own: leave it out"),
        ("--fused-layers 2", {"spatial": True}, "--fused-layers 2 fuses nothing without --halo-D2: add it"),
        ("--times 3", {"gems": True}, "times = 3 is not an even number, .* in pairs, .*: use 2 or 4"),
        ("--times 1 --passes 4", {"gems": True}, "passes = 4 and times = 1 both say the passes of gems"),
    ],
)
def test_what_says_nothing_in_a_script_is_refused(words: str, script: dict[str, bool], said: str) -> None:
    """It was read over."""
    with pytest.raises(ValueError, match=said):
        settings(words, **script)


def test_now_dls_defaults_are_taken_where_they_ask_for_nothing() -> None:
    assert plan("--times 1 --local-DP 1") == plan("")
    assert settings("--num-layers 3 --num-filters 16", model="amoebanet-d").model.num_filters == 16


def test_images_are_normalised_and_none_is_held_out() -> None:
    """As in now-dl; a tenth of them was held out."""
    found = settings("").data
    assert (found.mean, found.std, found.evaluation_fraction) == ("0.5,0.5,0.5", "0.5,0.5,0.5", 0.0)
    assert settings("--evaluation-fraction 0.2 --mean 0,0,0").data.evaluation_fraction == 0.2


def test_a_run_that_goes_on_has_its_own_plan() -> None:
    for script in ({"spatial": True}, {"gems": True}, {}):
        found = settings("--resume runs/x --steps 9 --lr 0.5", **script)
        assert found.said == {"resume", "steps", "lr"} and found.model.name is None
    assert settings("--resume runs/x --split-size 3", spatial=True).said == {"resume", "stages", "tiles"}


@pytest.mark.parametrize(
    ("words", "processes", "replicas"),
    [
        ("", 2, None),
        ("", 6, 3),
        ("--local-DP 2", 8, 2),
        ("--split-size 3 --balance 5,3,4", 6, 2),
        ("", 3, None),  # which the engine refuses with both numbers
        ("--replicas 1", 4, 1),
    ],
)
def test_more_processes_are_replicas(
    words: str,
    processes: int,
    replicas: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in (("RANK", 0), ("WORLD_SIZE", processes), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", processes)):
        monkeypatch.setenv(name, str(value))
    assert settings(words).plan.replicas == replicas
    needed = processes // (replicas or 1)
    said = f"{processes} processes = {replicas} replicas x {needed}: data parallelism\n"
    assert capsys.readouterr().out == (said if replicas and replicas > 1 else "")


@pytest.mark.parametrize(
    "script",
    [nowdl.Script("resnet-v2-110"), nowdl.Script("amoebanet-d", True), nowdl.Script("amoebanet-d", True, True)],
)
def test_help_tells_what_the_script_takes_a_line_each(script: nowdl.Script) -> None:
    """It was 220 lines of halocline train's, with its defaults."""
    text = nowdl.help_page(script, "benchmark.py")
    lines = [line.split() for line in text.splitlines() if line.startswith("  --") and "  " in line.strip()]
    told = {words[0].removeprefix("--").replace("-", "_") for words in lines}
    known = {*FOREIGN, *settings_of(nowdl.Options)}
    assert told <= known - script.refused.keys() and len(lines) == len(told) > 25
    assert max(map(len, text.splitlines())) <= 118
    assert {"split_size", "parts", "batch_size", "dry_run", "run_dir"} <= told
    assert ("num_spatial_parts" in told) == script.spatial
    assert ("times" in told) == script.gems
    for flag, default in (("--batch-size", "32"), ("--image-size", "32"), ("--lr", "0.001"), ("--split-size", "2")):
        assert any(words[0] == flag and words[-1] == f"{default})" for words in lines), flag
    named = {word for line in text.split("also,")[1].splitlines()[1:] for word in line.split()}
    assert "--tiles" not in named and "--hidden" not in named and "--timeline" not in named and "--tensor" in named


def test_the_values_that_help_tells_are_those_that_are_taken() -> None:
    script = nowdl.Script("amoebanet-d", True, True)
    words = [f"{spelled(name)}={value}" for name, value in nowdl.LEFT_OUT.items()]
    told, taken = nowdl.options_of(script, words).settings, settings("", model="amoebanet-d", spatial=True, gems=True)
    assert told.plan.plan(layers=24) == taken.plan.plan(layers=24)
    assert told.data == taken.data and told.optimizer == taken.optimizer
