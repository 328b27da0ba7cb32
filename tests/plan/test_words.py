"""Command-line words and keywords: every spelling of a flag means the same, and tyro reads the same dataclass."""

import dataclasses
import subprocess
import sys

import pytest
import tyro

from halocline.plan.flags import Flags
from halocline.plan.words import with_fields


@pytest.mark.parametrize(
    "words",
    ["--local-DP 2", "--local-dp 2", "--local_DP 2", "--local_dp=2", "--LOCAL-DP=2", "--local-DP 1 --local-DP 2"],
)
def test_spellings(words: str) -> None:
    assert Flags.read(words.split()) == Flags(local_DP=2)


@pytest.mark.parametrize("name", ["local_DP", "local_dp", "local-DP"])
def test_spellings_of_keywords(name: str) -> None:
    assert with_fields(Flags(), {name: 2}) == Flags(local_DP=2)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--export_timing_csv", True),
        ("--export_timing_csv true", True),
        ("--export-timing-csv=True", True),
        ("--export_timing_csv false", False),
        ("--no-export-timing-csv", False),
        ("--export_timing_csv --verbose", True),
        ("", False),
    ],
)
def test_switches(words: str, value: bool) -> None:
    assert Flags.read(words.split()).export_timing_csv is value


def test_merak_words_in_front() -> None:
    flags = Flags.read("bloom-3b 4 128 --num_prof_steps 4".split())
    assert flags == Flags(model="bloom-3b", microbatch_size=4, microbatches=128, num_prof_steps=4)


def test_short_verbose_and_negative_values() -> None:
    assert Flags.read(["-v", "--parts", "-1"]) == Flags(verbose=True, parts=-1)


def test_keywords_take_lists_and_numbers_where_the_command_line_takes_commas() -> None:
    made = with_fields(Flags(), {"balance": [4, 4], "image_size": (512, 384), "num_spatial_parts": 4})
    assert made == Flags(balance="4,4", image_size="512,384", num_spatial_parts="4")


NOW_DL = (
    "--verbose --batch-size 2 --parts 2 --split-size 3 --num-spatial-parts 4 --spatial-size 1 --times 2 "
    "--image-size 64 --num-epochs 2 --num-layers 9 --num-filters 32 --balance 5,5,5 --halo-D2 "
    "--fused-layers 2 --local-DP 2 --slice-method vertical --app 2 "
    "--datapath ./cifar --num-classes 5 --num-workers 1 --enable-master-comm-opt"
)
MERAK = (
    "--pp 4 --tp 1 --dp 2 --partition_method custom:0,1,2,3,4 --train_schedule early_recompute_1f1b "
    "--num_warmup_steps 1 --num_prof_steps 2 --perseus_url http://localhost:7787"
)


@pytest.mark.parametrize("words", [NOW_DL, MERAK])
def test_tyro_reads_the_same(words: str) -> None:
    read = Flags.read(words.split())
    assert tyro.cli(Flags, args=words.split()) == read
    given = [word for word in words.split() if word.startswith("--")]
    changed = [f.name for f in dataclasses.fields(Flags) if getattr(read, f.name) != f.default]
    assert len(changed) == len(given), (changed, given)


def test_every_flag_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tyro.cli(Flags, args=["--help"])
    shown = capsys.readouterr().out
    for field in dataclasses.fields(Flags):
        assert f"--{field.name.replace('_', '-')}" in shown
    assert "--local-DP" in shown and "Lanes: how many ranks share" in " ".join(shown.replace("│", " ").split())


def test_reading_a_plan_imports_neither_tyro_nor_torch() -> None:
    code = (
        "import sys; from halocline.plan import Plan; Plan.from_flags('--split-size 2 --parts 4'); "
        "sys.exit(bool({'torch', 'tyro', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
