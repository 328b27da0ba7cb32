"""Merak's flags in Halocline's own words."""

from __future__ import annotations

from typing import Any

import pytest

from halocline.plan.flags.dialects import FOREIGN, PASSING, SHORT, native
from halocline.plan.flags.reader import read


def said(words: str) -> dict[str, Any]:
    """What a command line of one flag after the other says here."""
    kinds = {name: flag.kind for name, flag in FOREIGN.items()}
    kinds |= (
        dict.fromkeys(("schedule", "recompute", "energy_server"), str)
        | dict.fromkeys(("batch_size", "steps"), int)
        | PASSING
    )
    return native(read(kinds, words.split(), (), SHORT))


MERAK = (
    "--pp 4 --tp 1 --dp 2 --partition_method custom:0,1,2,3,4 --train_schedule early_recompute_1f1b "
    "--num_warmup_steps 1 --num_prof_steps 2 --perseus_url http://localhost:7787 --energy_breakdown true"
)


def test_merak_in_our_own_words() -> None:
    assert said(MERAK) == {
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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--train_schedule instruction_profiler", {"schedule": "1f1b", "sweep": True}),
        (
            "--train_schedule instruction_profiler --perseus_url http://a:1",
            {"schedule": "1f1b", "energy_server": "http://a:1"},
        ),
        ("--train_schedule full_critical_path_1f1b", {"schedule": "1f1b"}),
        ("--train_schedule last_no_recompute_1f1b", {"schedule": "1f1b", "recompute": "but-last"}),
        ("--activation_checkpointing", {"recompute": "all"}),
        ("--activation_checkpointing false --recompute none", {"recompute": "none"}),
        ("--energy_breakdown true", {}),
        ("--export_timing_csv true --export_pytorch_trace", {"timing_csv": True, "pytorch_trace": True}),
    ],
)
def test_what_a_few_flags_say(words: str, expected: dict[str, object]) -> None:
    assert said(words) == expected
