"""Flags read as plans: the worked examples of now-dl's and Merak's documents, and the meaning of each flag."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.plan import Plan, Stage
from halocline.plan.flags.dialects import FOREIGN, plan_from_flags
from halocline.plan.flags.fields import settings_of
from halocline.train.settings import Settings

BERT = ["embedding"] + ["block"] * 24 + ["head"]
GPT_2_7B = ["embedding"] * 2 + ["block"] * 32 + ["head"]


def tiles(plan: Plan) -> list[tuple[int, ...]]:
    return [stage.tiles for stage in plan.stages]


def sizes(plan: Plan) -> list[int]:
    return [stage.layers[1] - stage.layers[0] for stage in plan.stages]


# -- now-dl's documents --------------------------------------------------------------------------------------------


def test_spatial_on_5() -> None:
    plan = Plan.from_flags(
        '--image-size 512 --num-spatial-parts 4 --slice-method "vertical" --split-size 2 --spatial-size 1'
    )
    assert plan.world_size == 5
    assert tiles(plan) == [(1, 4), (1, 1)]
    assert plan.image == (512, 512)
    assert plan.schedule == "layer"


def test_spatial_on_9() -> None:
    plan = Plan.from_flags(
        '--image-size 512 --num-spatial-parts 4 --slice-method "vertical" --split-size 3 --spatial-size 2'
    )
    assert plan.world_size == 9
    assert tiles(plan) == [(1, 4), (1, 4), (1, 1)]


def test_halo_d2_on_5() -> None:
    plan = Plan.from_flags('--halo-D2 --num-spatial-parts 4 --image-size 1024 --batch-size 2 --slice-method "square"')
    assert (plan.world_size, plan.fused, plan.batch) == (5, 1, 2)
    assert tiles(plan) == [(2, 2), (1, 1)]


def test_figure_one() -> None:
    assert Plan.from_flags(num_spatial_parts=4, split_size=4, spatial_size=1).world_size == 7


@pytest.mark.parametrize(("times", "effective"), [(2, 2), (4, 4)])
def test_gems_with_spatial_on_8(times: int, effective: int) -> None:
    plan = Plan.from_flags(
        split_size=5, batch_size=1, image_size=1024, times=times, num_spatial_parts=4, spatial_size=1
    )
    assert (plan.world_size, plan.schedule, plan.pipes) == (8, "gems", 2)
    assert (plan.batch, plan.passes, plan.microbatches) == (effective, times, times)


def test_gems_without_spatial_needs_split_size() -> None:
    assert Plan.from_flags("--split-size 5 --batch-size 1 --image-size 2048 --times 4").world_size == 5


def test_a_pass_of_gems_holds_the_parts_of_a_batch() -> None:
    plan = Plan.from_flags(split_size=2, parts=3, batch_size=6, times=4)
    assert (plan.microbatches, plan.passes, plan.microbatches_per_pass, plan.batch) == (12, 4, 3, 24)


def test_gems_has_two_passes_at_least() -> None:
    plan = Plan.from_flags(split_size=2, schedule="gems", batch_size=1)
    assert (plan.passes, plan.microbatches, plan.batch) == (2, 2, 2)
    with pytest.raises(ValueError, match=r"times = 1 is not an even number, .*: use 2, one in each \(GEMS-MAST\)"):
        Plan.from_flags(split_size=2, schedule="gems", batch_size=1, times=1)


def test_times_one_alone_is_not_gems() -> None:
    plan = Plan.from_flags(split_size=2, times=1, parts=4, batch_size=8)
    assert (plan.schedule, plan.pipes, plan.microbatches, plan.batch) == ("1f1b", 1, 4, 8)


def test_gems_by_its_own_names() -> None:
    one_each = Plan.from_flags(split_size=4, schedule="gems", microbatches=8, batch_size=1)
    assert (one_each.passes, one_each.microbatches_per_pass, one_each.batch) == (None, 1, 8)
    pairs = Plan.from_flags(split_size=4, schedule="gems", microbatches=8, passes=4, batch_size=2)
    assert (pairs.passes, pairs.microbatches_per_pass, pairs.batch) == (4, 2, 8)
    assert Plan.from_flags(split_size=4, times=4, parts=2, microbatches=8).microbatches == 8


def test_local_dp_gives_lanes_to_what_is_not_spatial() -> None:
    plan = Plan.from_flags(split_size=3, num_spatial_parts=4, local_DP=2, batch_size=4, parts=2)
    assert [stage.lanes for stage in plan.stages] == [1, 2, 2]
    assert plan.world_size == 4 + 2 * 2
    assert plan == Plan.from_flags(split_size=3, num_spatial_parts=4, local_dp=2, batch_size=4, parts=2)


def test_spatial_defaults_follow_the_flag_that_is_given() -> None:
    assert tiles(Plan.from_flags(split_size=3)) == [(1, 1)] * 3
    assert tiles(Plan.from_flags(split_size=3, spatial_size=2)) == [(2, 2), (2, 2), (1, 1)]
    assert tiles(Plan.from_flags(split_size=3, num_spatial_parts=6)) == [(2, 3), (1, 1), (1, 1)]
    assert tiles(Plan.from_flags(split_size=3, spatial_size=0)) == [(1, 1)] * 3


def test_different_tiles_per_spatial_stage() -> None:
    plan = Plan.from_flags("--split-size 3 --spatial-size 2 --num-spatial-parts 4,2 --slice-method horizontal")
    assert tiles(plan) == [(4, 1), (2, 1), (1, 1)]
    assert plan.world_size == 7


@given(st.data())
def test_processes_of_a_replica(data: st.DataObject) -> None:
    split = data.draw(st.integers(1, 6))
    spatial = data.draw(st.integers(1, split))
    parts = data.draw(st.lists(st.integers(1, 9), min_size=spatial, max_size=spatial))
    lanes, replicas = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    plan = Plan.from_flags(
        split_size=split, spatial_size=spatial, num_spatial_parts=parts, local_DP=lanes, replicas=replicas
    )
    assert plan.world_size == replicas * (sum(parts) + (split - spatial) * lanes)


@pytest.mark.parametrize(("flags", "image"), [("512", (512, 512)), ("512,384", (512, 384))])
def test_image_sizes(flags: str, image: tuple[int, int]) -> None:
    assert Plan.from_flags(["--image-size", flags]).image == image
    assert Plan.from_flags().image is None


def test_fused_layers_count_only_with_halo_d2() -> None:
    assert Plan.from_flags("--num-spatial-parts 4 --fused-layers 3").fused == 0
    assert Plan.from_flags("--num-spatial-parts 4 --fused-layers 3 --halo-D2").fused == 3


def test_balance() -> None:
    plan = Plan.from_flags("--split-size 3 --balance 5,4,2")
    assert sizes(plan) == [5, 4, 2]
    assert plan == Plan.from_flags(balance=[5, 4, 2]) == Plan.from_flags("--balance 5,4,2", layers=11)


def test_nothing_said_is_two_plain_stages() -> None:
    assert Plan.from_flags() == Plan((Stage((0, 1)), Stage((1, 2))), schedule="layer")


def test_layers_without_a_method_are_spread() -> None:
    assert sizes(Plan.from_flags(split_size=3, layers=11)) == [3, 4, 4]
    assert sizes(Plan.from_flags("--split-size 3 --layers 11")) == [3, 4, 4]


# -- Merak's documents ---------------------------------------------------------------------------------------------

MERAK = [
    ("bert-huge-uncased 8 32 --partition_method custom:0,8,14,20,26 --num_prof_steps 30", 4, 26, 256),
    ("bloom-3b 4 128 --partition_method custom:0,10,18,26,32 --num_prof_steps 4", 4, 32, 512),
    ("gpt3-xl 8 128 --partition_method custom:0,8,14,21,27 --num_prof_steps 4", 4, 27, 1024),
    ("t5-3b 4 32 --partition_method custom:0,16,33,53,74 --num_prof_steps 30", 4, 74, 128),
    ("wide-resnet101_8 64 24 --partition_method custom:0,7,16,25,34 --num_prof_steps 20", 4, 34, 1536),
    ("bloom-3b 4 128 --partition_method custom:0,6,10,14,18,22,26,30,32 --pp 8  --dp 1 --tp 1", 8, 32, 512),
    ("t5-3b 4 32 --partition_method custom:0,9,16,24,33,43,53,63,74 --pp 8 --dp 1 --tp 1", 8, 74, 128),
    ("wide-resnet101_8 32 48 --partition_method custom:0,4,9,13,17,21,25,30,34 --pp 8 --dp 1 --tp 1", 8, 34, 1536),
]


@pytest.mark.parametrize(("command", "stages", "layers", "batch"), MERAK)
@pytest.mark.parametrize("profiling", ["", " --export_timing_csv true"])
def test_merak_commands(command: str, stages: int, layers: int, batch: int, profiling: str) -> None:
    plan = Plan.from_flags(command + profiling)
    words = command.split()
    assert (plan.world_size, plan.layers, plan.batch) == (stages, layers, batch)
    assert (plan.schedule, plan.microbatches) == ("1f1b", int(words[2]))
    assert f"custom:{','.join(map(str, [0, *(stage.layers[1] for stage in plan.stages)]))}" == words[4]


@pytest.mark.parametrize(
    ("command", "kinds", "expected"),
    [
        ("bert-huge-uncased 8 32 --partition_method uniform_transformer --pp 8", BERT, [4, 3, 3, 3, 3, 3, 3, 4]),
        ("gpt3-2.7b 4 256 --partition_method uniform_transformer --pp 8", GPT_2_7B, [6, 4, 4, 4, 4, 4, 4, 5]),
    ],
)
def test_merak_uniform_transformer_commands(command: str, kinds: list[str], expected: list[int]) -> None:
    plan = Plan.from_flags(command + " --num_prof_steps 40 --dp 1 --tp 1", kinds=kinds)
    assert sizes(plan) == expected
    assert plan.world_size == 8


def test_two_gpus_of_a_node() -> None:
    plan = Plan.from_flags("gpt3-small 2 4 --pp 2 --dp 1 --tp 1")
    assert (plan.world_size, plan.batch) == (2, 8)


def test_run_sh_has_four_stages_by_default() -> None:
    assert Plan.from_flags("gpt3-small 2 4 --partition_method uniform", layers=15).world_size == 4


def test_degrees_multiply() -> None:
    plan = Plan.from_flags(pp=2, dp=3, tp=4)
    assert plan.world_size == 24
    assert [stage.tensor for stage in plan.stages] == [4, 4]


@pytest.mark.parametrize(
    ("train_schedule", "schedule", "recompute"),
    [
        ("1f1b", "1f1b", [False, False, False]),
        ("early_recompute_1f1b", "early-recompute-1f1b", [True, True, False]),
        ("last_no_recompute_1f1b", "1f1b", [True, True, False]),
        ("full_critical_path_1f1b", "1f1b", [True, True, False]),
        ("shifted_critical_path", "1f1b", [True, True, False]),
        ("ds_default", "1f1b", [False, False, False]),
        ("instruction_profiler", "1f1b", [False, False, False]),
    ],
)
def test_train_schedules(train_schedule: str, schedule: str, recompute: list[bool]) -> None:
    plan = Plan.from_flags(pp=3, microbatches=4, train_schedule=train_schedule)
    assert plan.schedule == schedule
    assert [stage.recompute for stage in plan.stages] == recompute


def test_activation_checkpointing() -> None:
    for words, recompute in [
        ("--activation_checkpointing true", [True, True]),
        ("--activation_checkpointing false", [False, False]),
        ("--activation_checkpointing true --train_schedule 1f1b", [True, True]),
        ("--activation_checkpointing true --train_schedule last_no_recompute_1f1b", [True, False]),
        ("--recompute but-last", [True, False]),
        ("--recompute all", [True, True]),
        ("--schedule early-recompute-1f1b", [True, False]),
    ]:
        assert [stage.recompute for stage in Plan.from_flags("--pp 2 " + words).stages] == recompute, words


def test_profile_and_parameters_take_numbers_per_layer() -> None:
    assert sizes(Plan.from_flags(pp=2, partition_method="profile", costs=[5, 1, 1, 1, 1])) == [1, 4]
    assert sizes(Plan.from_flags(pp=2, partition_method="parameters", parameters=[1, 1, 1, 1, 9])) == [4, 1]


# -- Halocline's own -----------------------------------------------------------------------------------------------


def test_schedule_defaults() -> None:
    assert Plan.from_flags(parts=1).schedule == "layer"
    assert Plan.from_flags(parts=2).schedule == "1f1b"
    assert Plan.from_flags(parts=2, schedule="gpipe").schedule == "gpipe"


def test_interleaved_has_chunks_times_as_many_stages() -> None:
    plan = Plan.from_flags(
        "--pp 4 --schedule interleaved --chunks 3 --microbatches 8 --layers 24 --num-spatial-parts 4"
    )
    assert (len(plan.stages), plan.places, plan.world_size) == (12, 4, 7)
    assert tiles(plan) == [(2, 2), (1, 1), (1, 1), (1, 1)] * 3
    assert len(Plan.from_flags(pp=4, schedule="interleaved", microbatches=8).stages) == 8
    assert Plan.from_flags(schedule="interleaved", microbatches=4, balance="1,2,3,4").world_size == 2


def test_chimera_and_capped_pipes() -> None:
    assert Plan.from_flags(pp=4, schedule="chimera", microbatches=4).pipes == 2
    assert Plan.from_flags(pp=4, schedule="capped", microbatches=4, cap=2).pipes == 1
    assert Plan.from_flags(pp=4, schedule="capped", microbatches=4, pipes=2).pipes == 2


def test_flags_words_and_keywords_are_one_thing() -> None:
    words = ["--split-size", "2", "--parts", "4", "--batch-size", "8"]
    plan = Plan.from_flags(words)
    assert plan == Plan.from_flags(stages=2, microbatches=4, batch_size=8)
    assert plan == Plan.from_flags(split_size=2, parts=4, batch_size=8)
    assert plan == Plan.from_flags(words[:4], batch_size=8) == plan_from_flags(" ".join(words))


def test_two_names_for_one_thing_may_agree() -> None:
    plan = Plan.from_flags(
        split_size=2, pp=2, dp=3, replicas=3, parts=4, microbatches=4, batch_size=8, microbatch_size=2
    )
    assert (plan.world_size, plan.microbatches, plan.batch) == (6, 4, 8)


@pytest.mark.parametrize(
    ("foreign", "native"),
    [
        ("--split-size 3 --num-spatial-parts 4 --parts 2", "--stages 3 --tiles 2x2 --microbatches 2"),
        ("--split-size 3 --num-spatial-parts 4,2 --spatial-size 2", "--stages 3 --tiles 2x2,1x2"),
        ("--split-size 2 --num-spatial-parts 3 --slice-method vertical", "--stages 2 --tiles 1x3"),
        ("--split-size 4 --times 4 --batch-size 1", "--stages 4 --schedule gems --passes 4 --batch-size 1"),
        ("--num-spatial-parts 4 --local-DP 2 --halo-D2 --fused-layers 3", "--tiles 4 --lanes 2 --fused 3 --stages 2"),
        ("--pp 4 --dp 2 --tp 2 --activation_checkpointing true", "--stages 4 --replicas 2 --tensor 2 --recompute all"),
        ("--pp 2 --train_schedule early_recompute_1f1b", "--stages 2 --schedule early-recompute-1f1b"),
        ("--partition_method custom:0,3,8", "--balance custom:0,3,8"),
        ("--balance 3,5", "--balance 3,5 --layers 8"),
    ],
)
def test_one_plan_in_two_languages_and_in_both_at_once(foreign: str, native: str) -> None:
    plan = Plan.from_flags(native)
    assert (
        plan
        == Plan.from_flags(foreign)
        == Plan.from_flags(f"{foreign} {native}")
        == Plan.from_flags(f"{native} {foreign}")
    )


@pytest.mark.parametrize(
    ("words", "both"),
    [
        ("--stages 3 --split-size 2", ("stages = 3", "split_size = 2")),
        ("--pp 4 --split-size 2", ("pp = 4", "split_size = 2")),
        ("--tiles 2x2 --num-spatial-parts 2", ("tiles = 2x2", "num_spatial_parts = 2, so tiles = 1x2")),
        ("--tiles 2x2 --spatial-size 2", ("tiles = 2x2", "spatial_size = 2, so tiles = 2x2,2x2")),
        ("--tiles 4 --slice-method vertical", ("tiles = 4", "slice_method = vertical, so tiles = 1x4")),
        ("--lanes 2 --local-DP 3", ("lanes = 2", "local_DP = 3")),
        ("--microbatches 4 --parts 2", ("microbatches = 4", "parts = 2")),
        ("--passes 4 --times 2", ("passes = 4", "times = 2")),
        ("--tensor 2 --tp 4", ("tensor = 2", "tp = 4")),
        ("--replicas 2 --dp 4", ("replicas = 2", "dp = 4")),
        ("--schedule gpipe --train_schedule 1f1b", ("schedule = gpipe", "train_schedule = 1f1b")),
        ("--recompute none --activation_checkpointing true", ("recompute = none", "recompute = all")),
        ("--balance 4,4 --partition_method uniform", ("balance = 4,4", "partition_method = uniform")),
        ("--fused 2 --halo-D2 --fused-layers 3", ("fused = 2", "fused_layers = 3")),
    ],
)
def test_two_languages_that_contradict_each_other_are_refused(words: str, both: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"both say .*: give one of them, or make them equal") as caught:
        Plan.from_flags(words)
    assert all(one in str(caught.value) for one in both), caught.value


def test_every_foreign_flag_says_what_it_is_here() -> None:
    ours = settings_of(Settings)
    for flag in FOREIGN.values():
        assert flag.told.endswith((".", ")")), flag
        assert flag.native in ours or flag.told.startswith(("Does nothing: ", "Refused: ", "Refused but for ")), flag


def test_reading_a_plan_imports_no_torch() -> None:
    code = (
        "import sys; from halocline.plan import Plan; Plan.from_flags('--split-size 2 --parts 4'); "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
