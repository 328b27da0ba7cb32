"""Bad input is answered in one line that names the field, what was found, what would do, and the way out."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from halocline.plan import Plan, Stage
from halocline.plan.partition import partition
from halocline.plan.stage import tile_grid

Case = tuple[Callable[[], object], str, tuple[object, ...], str]
"""What is done, the field the message must name, the values it must show, and its fix."""


def plan(stages: int = 4, **fields: Any) -> Callable[[], object]:
    return lambda: Plan.uniform(stages, **fields)


def stage(*layers: Any, **fields: Any) -> Callable[[], object]:
    return lambda: Stage(layers or (0, 1), **fields)


def toml(text: str) -> Callable[[], object]:
    return lambda: Plan.from_toml(text)


def flags(words: str = "", **fields: Any) -> Callable[[], object]:
    return lambda: Plan.from_flags(words, **fields)


def cut(method: Any, layers: int, stages: int, **known: Any) -> Callable[[], object]:
    return lambda: partition(method, layers, stages, **known)


ONE = "[[stages]]\nlayers = [0, 1]\n"

PLANS: list[Case] = [
    (plan(0), "stages", (0, 1), "use 1"),
    (plan(2.5), "stages", (2.5, 1), "a whole number"),  # type: ignore[arg-type]
    (lambda: Plan(()), "stages", (0, 1), "needs at least 1 stage"),
    (lambda: Plan([Stage((0, 1))]), "stages", (), "give a tuple"),  # type: ignore[arg-type]
    (lambda: Plan((Stage((0, 2)), Stage((3, 4)))), "stages[1].layers", (3, 2), "start it at 2"),
    (lambda: Plan((Stage((1, 2)),)), "stages[0].layers", (1, 0), "start it at 0"),
    (
        lambda: Plan((Stage((0, 1), tiles=(1, 2)), Stage((1, 2), tiles=(2,)))),
        "stages",
        (1, 2),
        "give every stage the same number",
    ),
    (plan(schedule="1f1c"), "schedule", ("1f1c",), "did you mean '1f1b'"),
    (plan(schedule=7), "schedule", (7,), "one of layer, gpipe"),
    (plan(microbatches=0), "microbatches", (0, 1), "use 1"),
    (plan(microbatches=-3), "microbatches", (-3, 1), "use 1"),
    (plan(microbatches="8"), "microbatches", ("8", 1), "give a whole number"),
    (plan(replicas=0), "replicas", (0, 1), "use 1"),
    (plan(chunks=0), "chunks", (0, 1), "use 1"),
    (plan(pipes=3), "pipes", (3, 2), "use 1, or 2"),
    (plan(pipes=True), "pipes", (1, 2), "give 1 or 2"),
    (plan(schedule="gems", microbatches=2), "pipes", (1, 2), "use pipes = 2"),
    (plan(pipes=2, microbatches=2), "pipes", (2, 1), "use pipes = 1"),
    (plan(3, schedule="chimera", pipes=2, microbatches=2), "stages", (3, 2, 4), "use 2 or 4"),
    (plan(1, schedule="chimera", pipes=2, microbatches=2), "stages", (1, 4, 2), "use 4 or 2"),
    (plan(schedule="chimera", pipes=2, microbatches=3), "microbatches", (3, 4), "use 4"),
    (plan(schedule="capped", pipes=2, microbatches=1), "microbatches", (1, 2), "use microbatches = 2"),
    (plan(schedule="interleaved", microbatches=4), "chunks", (1, 2), "use chunks = 2"),
    (plan(chunks=2), "chunks", (2, 1), "use schedule interleaved"),
    (plan(5, schedule="interleaved", chunks=2, microbatches=4), "stages", (5, 2, 4), "use 4 stages"),
    (plan(schedule="interleaved", chunks=2, microbatches=5), "microbatches", (5, 2, 6), "use 6"),
    (
        lambda: Plan(
            (Stage((0, 1), lanes=2), Stage((1, 2))), schedule="interleaved", chunks=2, microbatches=1, batch=2
        ),
        "stages[1]",
        (2, 1),
        "give them the same",
    ),
    (plan(passes=2), "passes", (2,), "leave it out"),
    (plan(schedule="gems", pipes=2, microbatches=6, passes=3), "passes", (3, 4), "use 4"),
    (plan(schedule="gems", pipes=2, microbatches=3), "microbatches", (3, 4), "use 4"),
    (plan(schedule="gems", pipes=2, microbatches=6, passes=4), "microbatches", (6, 4, 2), "use microbatches = 4"),
    (plan(schedule="gems", pipes=2, microbatches=6, passes=0), "passes", (0, 2), "use 2"),
    (plan(schedule="capped", cap=0), "cap", (0, 1), "use cap = 1"),
    (plan(schedule="capped", cap="2GB"), "cap", ("2GB", 0), "a number above 0"),
    (plan(schedule="1f1b", cap=2), "cap", (2,), "use schedule capped"),
    (plan(fused=-1), "fused", (-1, 0), "use 0"),
    (plan(batch=3, microbatches=4), "batch", (3, 4), "use microbatches = 3"),
    (plan(batch=0), "batch", (0, 1), "use 1"),
    (lambda: Plan((Stage((0, 1), lanes=3),), batch=4, microbatches=2), "lanes", (3, 2, 6), "a batch of 6"),
    (plan(image=()), "image", (0,), "give height and width"),
    (plan(image=(512, 0)), "image", (0, 1), "use"),
    (plan(image=512), "image", (512,), "give height and width"),
    (lambda: Plan((Stage((0, 1), tiles=(2, 8)),), image=(4, 4)), "stages[0].tiles", (4, 8), "use at most 4"),
    (lambda: Plan((Stage((0, 1), tiles=(2, 2)),), image=(64,)), "stages[0].tiles", (2, 1), "give one number per dim"),
]

STAGES: list[Case] = [
    (stage(0, 0), "stage.layers", (0, 1), "needs at least 1"),
    (stage(4, 2), "stage.layers", (4, 2, 5), "e.g. [4, 5]"),
    (stage(-2, 2), "stage.layers", (-2, 2), "count from 0"),
    (stage(0, 1, 2), "stage.layers", (3, 2), "write [first, last + 1]"),
    (stage(0, 1.5), "stage.layers", (1.5,), "give whole numbers"),
    (stage(tiles=(0, 2)), "stage.tiles", (0, 1), "use 1"),
    (stage(tiles=()), "stage.tiles", (0, 1, 3), "e.g. [2, 2]"),
    (stage(tiles=(1, 1, 1, 1)), "stage.tiles", (4, 3), "e.g. [2, 2]"),
    (stage(lanes=0), "stage.lanes", (0, 1), "use 1"),
    (stage(tensor=-1), "stage.tensor", (-1, 1), "use 1"),
    (stage(recompute="yes"), "stage.recompute", ("yes",), "true or false"),
]

FILES: list[Case] = [
    (toml("microbatches 4"), "TOML", (1, 14), "write one key = value per line"),
    (toml("microbatches = 4"), "stages", (), "[[stages]] table with layers"),
    (toml("stages = 4"), "stages = 4 is not a list", (4,), "give [[stages]] tables"),
    (toml("[[stages]]\nlanes = 2"), "stages[0].layers", (), "write layers = [first, last + 1]"),
    (toml(f"microbatch = 4\n{ONE}"), "microbatch", (), "did you mean 'microbatches'"),
    (toml(f"{ONE}tile = [2, 2]"), "stages[0].key = 'tile'", (), "did you mean 'tiles'"),
    (toml(f"{ONE}lanes = 0"), "stages[0].lanes", (0, 1), "use 1"),
    (toml(f"{ONE}lanes = 2.0"), "stages[0].lanes", (2.0, 1), "give a whole number"),
    (toml(f"{ONE}[[stages]]\nlayers = [1, 1]"), "stages[1].layers", (1, 0), "e.g. [1, 2]"),
    (toml("[[stages]]\nlayers = 4"), "stages[0].layers", (4,), "two whole numbers"),
    (toml(f"schedule = ['1f1b']\n{ONE}"), "schedule", (), "one of layer"),
    (toml(f'microbatches = "4"\n{ONE}'), "microbatches", ("4", 1), "give a whole number"),
    (toml(f"{ONE}tiles = [[2, 2]]"), "stages[0].tiles", (1,), "give a whole number"),
    (toml("stages = [1]"), "stages[0] = 1 is not a table", (1,), "a [[stages]] table"),
]

WORDS: list[Case] = [
    (flags("--split-sise 2"), "--split-sise", (), "did you mean --split-size?"),
    (flags("--num-spacial-parts 4"), "--num-spacial-parts", (), "did you mean --num-spatial-parts?"),
    (flags(splitsize=2), "splitsize", (), "did you mean split_size?"),
    (flags(local_PD=2), "local_PD", (), "did you mean local_DP?"),
    (flags("--split-size"), "--split-size", (0, 1), "write --split-size 4"),
    (flags("--split-size --parts 4"), "--split-size", (0, 1), "write --split-size 4"),
    (flags("--split-size two"), "--split-size", ("two",), "write --split-size 4"),
    (flags("--split-size 2.5"), "--split-size", (2.5,), "write --split-size 4"),
    (flags("--cap much --schedule capped"), "--cap", ("much",), "write --cap 2.5"),
    (flags("--halo-D2=maybe"), "--halo-D2", ("maybe",), "leave it out"),
    (flags("bert-huge-uncased 8"), "bert-huge-uncased 8", (2, 3), "MODEL MICROBATCH_SIZE MICROBATCHES"),
    (flags("gpt3-xl eight 32"), "microbatch_size", ("eight",), "write microbatch_size 4"),
    (flags(parts="four"), "parts", ("four",), "give 4"),
    (flags(halo_D2=3), "halo_D2", (3,), "give true"),
    (flags("--split-size 0"), "split_size", (0, 1), "use 1"),
    (flags("--pp -4"), "pp", (-4, 1), "use 1"),
    (flags("--split-size 4 --pp 8"), "split_size", (4, 8), "give one of them"),
    (flags("--dp 2 --replicas 4"), "dp", (2, 4), "give one of them"),
    (flags("--parts 2 --microbatches 4"), "microbatches", (2, 4), "give one of them"),
    (flags("--times 2 --parts 2 --microbatches 8"), "microbatches", (8, 4, 2), "give one of them"),
    (flags("--times 4 --passes 2"), "times", (4, 2), "give one of them"),
    (flags("--batch-size 8 gpt3-xl 4 4"), "batch_size", (8, 16), "give one of them"),
    (flags("--layers 12", layers=24), "layers", (12, 24), "give one of them"),
    (flags("--times 3"), "times", (3, 2, 4), "use 2 or 4"),
    (flags("--times 0"), "times", (0, 1), "use 1"),
    (flags("--times 2 --schedule 1f1b"), "times", (2, "1f1b", 1), "use times = 1"),
    (flags("--schedule gems --passes 5"), "passes", (5, 6), "use 6"),
    (flags("--schedule gems --passes 0"), "passes", (0, 2), "use 2"),
    (flags("--schedule gpipe --train_schedule 1f1b"), "train_schedule", ("gpipe", "1f1b"), "give one of them"),
    (flags("--schedule gem"), "schedule", ("gem",), "did you mean 'gems'"),
    (flags("--train_schedule 1f2b"), "train_schedule", ("1f2b",), "did you mean '1f1b'"),
    (flags("--recompute last"), "recompute", ("last",), "did you mean 'but-last'"),
    (flags("--recompute none --activation_checkpointing true"), "recompute", ("none", "all"), "give one of them"),
    (
        flags("--train_schedule early_recompute_1f1b --activation_checkpointing false"),
        "train_schedule",
        ("none", "but-last"),
        "give one of them",
    ),
    (flags("--slice-method diagonal"), "slice_method", ("diagonal",), "did you mean 'horizontal'"),
    (flags("--app 4"), "app", (4, 3), "3 for synthetic data"),
    (flags("--fused-layers 0"), "fused_layers", (0, 1), "use 1"),
    (flags("--num-workers -1"), "num_workers", (-1, 0), "use 0"),
    (flags("--split-size 2 --spatial-size 3"), "spatial_size", (3, 2), "use at most 2"),
    (flags("--spatial-size -1"), "spatial_size", (-1, 0), "use 0"),
    (flags("--spatial-size 0 --num-spatial-parts 4"), "spatial_size", (0, 1), "use 1"),
    (flags("--num-spatial-parts 4,2 --split-size 3"), "num_spatial_parts", (2, 1), "spatial_size = 2"),
    (flags("--num-spatial-parts 0"), "num_spatial_parts", (0, 1), "use 1"),
    (flags("--num-spatial-parts 4;2"), "num_spatial_parts", ("4;2",), "e.g. 4"),
    (flags("--num-spatial-parts 16 --slice-method vertical --image-size 8"), "stages[0].tiles", (8, 16), "at most 8"),
    (flags("--image-size 0"), "image_size", (0, 1), "use"),
    (flags("--image-size 8,8,8"), "image_size", (3, 2), "write 512"),
    (flags("--image-size 512x512"), "image_size", ("512x512",), "e.g. 4"),
    (flags("--parts 8 --batch-size 4"), "batch", (4, 8), "use microbatches = 4"),
    (flags("--batch-size 0"), "batch_size", (0, 1), "use 1"),
    (flags("--local-DP 2 --batch-size 4 --parts 4"), "lanes", (2, 1, 8), "a batch of 8"),
    (flags("--local-DP 0"), "local_DP", (0, 1), "use 1"),
    (flags("--tp 0"), "tp", (0, 1), "use 1"),
    (flags("--chunks 0"), "chunks", (0, 1), "use 1"),
    (flags("--balance 4,4 --split-size 3"), "balance", (2, 3), "give 3"),
    (flags("--balance 4,4", layers=9), "balance", (8, 9), "add 1"),
    (flags("--balance 4,4 --partition_method uniform"), "partition_method", ("4,4", "uniform"), "give one of them"),
    (flags("--partition_method custom:0,8,4,20 --pp 3"), "custom:0,8,4,20", (4, 8, 9), "use 9 or more"),
    (flags("--partition_method custom:0,8,14,20,26 --pp 3"), "custom", (5, 3, 4), "give 4"),
    (flags("--partition_method custom:0,8,14,20,26", layers=27), "custom", (26, 27), "end at 27"),
    (flags("--partition_method uniform_transformer --pp 2 --layers 26"), "kinds", (26, 0), "pass kinds="),
    (flags("--partition_method profile --pp 2", layers=4), "costs", (4, 0), "pass costs="),
    (flags("--split-size 4 --layers 3"), "layers", (3, 4), "use at most 3 stages"),
]

PARTITIONS: list[Case] = [
    (cut("unifrom", 8, 2), "balance", ("unifrom",), "did you mean 'uniform'"),
    (cut("uniform", 0, 2), "layers", (0, 1), "use 1"),
    (cut("uniform", 8, 0), "stages", (0, 1), "use 1"),
    (cut("uniform", 2, 3), "layers", (2, 3), "use at most 2 stages"),
    (cut("uniform", 5, 4), "uniform", (5, 4, 2, 3), "use uniform_floor, or 3 stages"),
    (cut("uniform:2", 8, 4), "balance", ("uniform:2", 0), "write 'uniform'"),
    (cut("4,4,4", 11, 3), "balance", (12, 11), "take 1 away"),
    (cut("4,0,4", 8, 3), "balance", (0, 1), "give each at least 1"),
    (cut((4, -1, 5), 8, 3), "balance", (-1, 1), "give each at least 1"),
    (cut((4, 4.0), 8, 2), "balance", (4.0,), "whole numbers"),
    (cut("balance:4,x", 8, 2), "balance", ("x",), "e.g. 4"),
    (cut("balance", 8, 2), "balance", (), "e.g. 4"),
    (cut("custom:1,4,8", 8, 2), "custom:1,4,8", (1, 0), "start at 0"),
    (cut("custom:0,4,4,8", 8, 3), "custom:0,4,4,8", (4, 5), "use 5 or more"),
    (cut("custom:0,4", 8, 2), "custom:0,4", (2, 3), "give 3"),
    (cut("profile", 3, 2, costs=[1, 2]), "costs", (2, 3), "give one per layer"),
    (cut("profile", 3, 2, costs=[1, -2, 3]), "costs[1]", (-2, 0), "measure the layer again"),
    (cut("profile", 3, 2, costs=[1, float("nan"), 3]), "costs[1]", ("nan", 0), "measure the layer again"),
    (cut("profile", 2, 2, costs=[1, "2"]), "costs[1]", ("2", 0), "give a number"),
    (cut("parameters", 3, 2), "parameters", (3, 0), "pass parameters="),
    (cut("uniform_transformer", 2, 1, kinds=["blok", "head"]), "kinds", ("blok",), "did you mean 'block'"),
    (cut("uniform_transformer", 3, 2, kinds=["embedding", "block", "head"]), "kinds", (1, 2), "at most 1"),
    (cut("uniform_transformer", 4, 3, kinds=["encoder"] * 2 + ["decoder"] * 2), "stages", (3, 4), "use 4 stages"),
    (cut("uniform_transformer", 2, 1, kinds=["embedding", "head"]), "kinds", (0, 1), "use another method"),
    (lambda: tile_grid(0), "num_spatial_parts", (0, 1), "use 1"),
    (lambda: tile_grid(2.0), "num_spatial_parts", (2.0, 1), "a whole number"),  # type: ignore[arg-type]
    (lambda: tile_grid(4, "squared"), "slice_method", ("squared",), "did you mean 'square'"),
]

CASES = PLANS + STAGES + FILES + WORDS + PARTITIONS


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize(
    ("act", "field", "values", "fix"), CASES, ids=[f"{n}-{case[1]}" for n, case in enumerate(CASES)]
)
def test_one_line_names_the_field_the_values_and_a_fix(
    act: Callable[[], object], field: str, values: tuple[object, ...], fix: str
) -> None:
    with pytest.raises(ValueError) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message and len(message) < 260, message
    assert field in message, message
    for value in values:
        shown = r"True" if value is True else re.escape(str(value))
        assert re.search(rf"(?<![\w.]){shown}(?![\w])", message), (value, message)
    assert fix in message, message


def test_the_fixes_are_good() -> None:
    """What a message proposes is accepted when done."""
    assert Plan.from_flags("--times 4").passes == 4
    assert Plan.from_flags("--split-size 3 --spatial-size 2 --num-spatial-parts 4,2").world_size == 7
    assert Plan.uniform(4, schedule="interleaved", chunks=2, microbatches=6).microbatches == 6
