"""Command-line words and keywords: every spelling of a flag means the same, and what is not said is not there."""

import subprocess
import sys

import pytest

from halocline.plan.flags.dialects import FOREIGN, PASSING, POSITIONAL, SHORT, native
from halocline.plan.flags.fields import changed, flat, help_of, settings_of
from halocline.plan.flags.reader import read
from halocline.plan.settings import PlanSettings

KINDS = {one.flag: one.kind for one in settings_of(PlanSettings).values()}
EVERY = {**KINDS, **{name: flag.kind for name, flag in FOREIGN.items()}, **PASSING}


def said(words: str) -> dict[str, object]:
    return read(EVERY, words.split(), POSITIONAL, SHORT)


@pytest.mark.parametrize(
    "words",
    ["--local-DP 2", "--local-dp 2", "--local_DP 2", "--local_dp=2", "--LOCAL-DP=2", "--local-DP 1 --local-DP 2"],
)
def test_spellings(words: str) -> None:
    assert said(words) == {"local_DP": 2}
    assert native(said(words)) == {"lanes": 2}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--export_timing_csv", True),
        ("--export_timing_csv true", True),
        ("--export-timing-csv=True", True),
        ("--export_timing_csv false", False),
        ("--no-export-timing-csv", False),
        ("--export_timing_csv --verbose", True),
    ],
)
def test_switches(words: str, value: bool) -> None:
    assert said(words)["export_timing_csv"] is value


def test_only_what_is_said_is_there() -> None:
    assert said("") == {}
    assert said("--accumulate 1 --no-sequence-parallel") == {"accumulate": 1, "sequence_parallel": False}


def test_merak_words_in_front() -> None:
    expected = {"model": "bloom-3b", "microbatch_size": 4, "microbatches": 128, "num_prof_steps": 4}
    assert said("bloom-3b 4 128 --num_prof_steps 4") == expected
    assert said("--num_prof_steps 4 bloom-3b 4 128") == expected


def test_short_verbose_and_negative_values() -> None:
    assert said("-v --parts -1") == {"verbose": True, "parts": -1}


def test_keywords_take_lists_and_numbers_where_the_command_line_takes_commas() -> None:
    made = changed(PlanSettings(), {"balance": [4, 4], "image_size": (512, 384), "tiles": (2, 3)})
    assert made == PlanSettings(balance="4,4", image_size="512,384", tiles="2x3")
    assert changed(PlanSettings(), {"image_size": 512}).image == (512, 512)


def test_a_tree_of_settings_is_flat_by_flag() -> None:
    assert flat(PlanSettings(file="plan.toml", stages=3))["plan"] == "plan.toml"
    assert set(flat(PlanSettings())) == set(KINDS)
    assert all(text.endswith((".", ")")) for text in help_of(PlanSettings).values())


NOW_DL = (
    "--verbose --batch-size 2 --parts 2 --split-size 3 --num-spatial-parts 4 --spatial-size 1 --times 2 "
    "--image-size 64 --num-epochs 2 --num-layers 9 --num-filters 32 --balance 5,5,5 --halo-D2 "
    "--fused-layers 2 --local-DP 2 --slice-method vertical --app 2 "
    "--datapath ./cifar --num-classes 5 --num-workers 1 --enable-master-comm-opt"
)
MERAK = (
    "--pp 4 --tp 1 --dp 2 --partition_method custom:0,1,2,3,4 --train_schedule early_recompute_1f1b "
    "--num_warmup_steps 1 --num_prof_steps 2 --perseus_url http://localhost:7787 --energy_breakdown true"
)


def test_now_dl_in_our_own_words() -> None:
    assert native(said(NOW_DL)) == {
        "verbose": True,
        "batch_size": 2,
        "microbatches": 4,
        "stages": 3,
        "tiles": "1x4",
        "schedule": "gems",
        "passes": 2,
        "image_size": "64",
        "epochs": 2,
        "num_layers": 9,
        "num_filters": 32,
        "balance": "5,5,5",
        "fused": 2,
        "lanes": 2,
        "data": "cifar10:./cifar",
        "num_classes": 5,
        "workers": 1,
    }


def test_merak_in_our_own_words() -> None:
    assert native(said(MERAK)) == {
        "stages": 4,
        "tensor": 1,
        "replicas": 2,
        "balance": "custom:0,1,2,3,4",
        "schedule": "early-recompute-1f1b",
        "recompute": "but-last",
        "profile_warmup": 1,
        "profile_steps": 2,
        "energy_server": "http://localhost:7787",
    }


def test_every_foreign_flag_says_what_it_is_here() -> None:
    for flag in FOREIGN.values():
        assert flag.help.endswith((".", ")")) and (flag.native or "Does nothing" in flag.help), flag


def test_reading_a_plan_imports_no_torch() -> None:
    code = (
        "import sys; from halocline.plan import Plan; Plan.from_flags('--split-size 2 --parts 4'); "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
