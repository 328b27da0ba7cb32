"""A command line: every spelling of a flag means the same, what is not said is not there, and a typo is told."""

import pytest

from halocline.plan.flags.dialects import FOREIGN, PASSING, POSITIONAL, SHORT
from halocline.plan.flags.fields import settings_of
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


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--stagse 4", "--stagse is not a flag: did you mean --stages?"),
        ("--stages", "--stages has 0 values and takes 1: write --stages 4"),
        ("--stages --tiles 4", "--stages has 0 values and takes 1: write --stages 4"),
        ("--stages two", "--stages = 'two' is not a whole number: write --stages 4"),
        ("--stages=", "--stages = '' is not a whole number: write --stages 4"),
        ("--stages 2.0", "--stages = '2.0' is not a whole number: write --stages 4"),
        ("--cap much", "--cap = 'much' is not a number: write --cap 2.5"),
        ("--verbose=maybe", "--verbose = 'maybe' is not true or false: write --verbose for true, or leave it out"),
        ("--no-stages 4", "--no-stages is not a flag"),
        ("gpt3 4", "2 words belong to no flag (gpt3 4): give 0, or the 3 words MODEL MICROBATCH_SIZE MICROBATCHES"),
        ("gpt3 four 8", "microbatch_size = 'four' is not a whole number"),
        ("-x 4", "-x is not a flag: leave it out; --help all tells those there are"),
        ("-stages 4", "-stages is not a flag: did you mean --stages?"),
    ],
)
def test_mistakes(words: str, answer: str) -> None:
    with pytest.raises(ValueError) as caught:
        said(words)
    assert answer in str(caught.value) and "\n" not in str(caught.value)


def test_values_that_look_odd() -> None:
    assert said("--image-size 512,384 --cap 1e3 --tiles=2x2,1x2 --balance custom:0,2,4") == {
        "image_size": "512,384",
        "cap": 1000.0,
        "tiles": "2x2,1x2",
        "balance": "custom:0,2,4",
    }
    assert said("--plan a=b.toml") == {"plan": "a=b.toml"}
