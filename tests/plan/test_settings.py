"""A plan in a few words: what is left out, what the words mean together, and what they cannot mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halocline.plan import Plan, Stage
from halocline.plan.settings import PlanSettings


def plan(**said: Any) -> Plan:
    return PlanSettings(**said).plan()


def test_a_grid_for_each_tiled_stage() -> None:
    made = plan(stages=3, tiles="2x2,1x2", lanes=2)
    assert [stage.tiles for stage in made.stages] == [(2, 2), (1, 2), (1, 1)]
    assert [stage.lanes for stage in made.stages] == [1, 1, 2]
    assert made.world_size == 4 + 2 + 2


def test_tiles_of_places_with_several_stages() -> None:
    made = plan(stages=2, tiles="1x2", schedule="interleaved", chunks=2, microbatches=4)
    assert [stage.tiles for stage in made.stages] == [(1, 2), (1, 1), (1, 2), (1, 1)]


def test_volumes() -> None:
    assert [stage.tiles for stage in plan(stages=2, tiles="2x1x2").stages] == [(2, 1, 2), (1, 1, 1)]


def test_accumulation_is_more_microbatches_of_the_same_size() -> None:
    summed = plan(microbatches=3, batch_size=6, accumulate=4)
    assert (summed.microbatches, summed.batch) == (12, 24)
    gems = plan(schedule="gems", passes=2, microbatches=4, batch_size=4, accumulate=3)
    assert (gems.microbatches, gems.passes, gems.batch) == (12, 6, 24)


def test_the_batch_of_gems_is_that_of_a_pass() -> None:
    assert plan(schedule="gems", microbatches=4, batch_size=2).batch == 8
    assert plan(schedule="gems", passes=2, microbatches=4, batch_size=2).batch == 4
    assert plan(schedule="gpipe", microbatches=4, batch_size=8).batch == 8
    assert plan(microbatches=4, microbatch_size=2).batch == 8


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"stages": 0}, "stages = 0 is below 1: use 1 or more"),
        ({"tiles": "2y2"}, "tiles = '2y2' is no list of grids: '2y2' should be one, e.g. 2x2 or 4"),
        ({"tiles": "2x0"}, "tiles = 0 is below 1"),
        ({"tiles": "2x2,2x2", "stages": 1}, "tiles = 2x2,2x2 has 2 grids for 1 stages: give at most 1"),
        ({"lanes": 0}, "lanes = 0 is below 1"),
        ({"tensor": -1}, "tensor = -1 is below 1"),
        ({"schedule": "1f2b"}, "did you mean '1f1b'?"),
        ({"recompute": "some"}, "one of none, all, but-last"),
        ({"shard": "weights"}, "one of none, optimizer, parameters"),
        ({"image_size": "64,64,64"}, "image_size has 3 numbers, not 1 or 2"),
        ({"image_size": "0"}, "image_size = 0 is below 1"),
        ({"balance": "4,4", "layers": 9}, "balance = 4,4 sums to 8 but the model has 9 layers: add 1"),
        (
            {"batch_size": 8, "microbatch_size": 3, "microbatches": 2},
            "batch_size = 8 and microbatch_size x microbatches",
        ),
        ({"file": "auto"}, "plan = auto chooses no plan yet: say --stages, --tiles and the like, or give a plan.toml"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        plan(**said)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"stages": 3}, "--stages 3 contradicts {}, which has stages = 2: leave out --stages, or change the plan"),
        ({"schedule": "gpipe"}, "--schedule gpipe contradicts"),
        ({"cap": 2.0}, "--cap 2.0 contradicts {}, which has cap = None"),
        ({"tiles": "2x2"}, "--tiles 2x2 beside --plan {}, which says it per stage: leave out --tiles"),
        ({"balance": "uniform"}, "--balance uniform beside"),
        ({"batch_size": 8}, "--batch-size 8 contradicts {}, which has batch = 4"),
        ({"microbatch_size": 3}, "--batch-size 6 contradicts {}, which has batch = 4"),
    ],
)
def test_a_file_may_be_repeated_but_not_contradicted(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    known = Plan((Stage((0, 3), tiles=(1, 2)), Stage((3, 5))), "1f1b", 2, batch=4)
    known.save(path)
    assert plan(file=str(path), stages=2, schedule="1f1b", microbatches=2, batch_size=4, layers=5) == known
    assert plan(file=str(path), image_size="64").image == (64, 64)
    with pytest.raises(ValueError) as caught:
        plan(file=str(path), **said)
    assert words.format(path) in str(caught.value)
