"""now-dl's flags in Halocline's own words."""

from __future__ import annotations

from typing import Any

import pytest

from halocline.plan.flags.dialects import FOREIGN, PASSING, SHORT, native
from halocline.plan.flags.reader import read


def said(words: str) -> dict[str, Any]:
    """What a command line of one flag after the other says here."""
    kinds = {name: flag.kind for name, flag in FOREIGN.items()}
    kinds |= (
        dict.fromkeys(("image_size", "balance", "schedule", "tiles", "data"), str)
        | dict.fromkeys(("batch_size", "steps"), int)
        | PASSING
    )
    return native(read(kinds, words.split(), (), SHORT))


NOW_DL = (
    "--verbose --batch-size 2 --parts 2 --split-size 3 --num-spatial-parts 4 --spatial-size 1 --times 2 "
    "--image-size 64 --num-epochs 2 --num-layers 9 --num-filters 32 --balance 5,5,5 --halo-D2 "
    "--fused-layers 2 --local-DP 2 --slice-method vertical --app 2 "
    "--datapath ./cifar --num-classes 5 --num-workers 1 --enable-master-comm-opt"
)


def test_now_dl_in_our_own_words() -> None:
    assert said(NOW_DL) == {
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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--num-spatial-parts 4", {"stages": 2, "tiles": "2x2"}),
        ("--num-spatial-parts 4,2 --spatial-size 2 --split-size 3", {"stages": 3, "tiles": "2x2,1x2"}),
        ("--spatial-size 2 --slice-method horizontal", {"stages": 2, "tiles": "4x1,4x1"}),
        ("--spatial-size 0", {"stages": 2}),
        ("--slice-method vertical", {}),
        ("--halo-D2", {"fused": 1}),
        ("--fused-layers 3", {}),
        ("--times 1", {"stages": 2}),
        ("--times 4 --parts 3", {"stages": 2, "schedule": "gems", "passes": 4, "microbatches": 12}),
        ("--schedule gems --parts 3", {"schedule": "gems", "passes": 2, "microbatches": 6}),
        ("--app 1 --datapath slides", {"data": "slides"}),
        ("--app 1", {"data": "./train"}),
        ("--app 2 --datapath x", {"data": "cifar10:x"}),
        ("--app 3 --datapath x", {"data": "synthetic"}),
        ("--datapath x", {}),
        ("--app 3 --lesions", {"data": "lesions"}),
        ("--num-epochs 3 --steps 4", {"steps": 4}),
        ("--learning-rate 0.5", {"lr": 0.5}),
        ("--enable-master-comm-opt", {}),
    ],
)
def test_what_a_few_flags_say(words: str, expected: dict[str, object]) -> None:
    assert said(words) == expected
