"""docs/plans.md and docs/transformers.md: their tables say what every flag of other programs is here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halocline.plan.flags.dialects import FOREIGN
from halocline.plan.flags.reader import spelled

DOCS = Path(__file__).parents[2] / "docs"
LINES = [line for name in ("plans.md", "transformers.md") for line in (DOCS / name).read_text("utf-8").splitlines()]
ROWS = [line.split(" | ") for line in LINES if line.startswith("| `--")]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_table_names_what_a_flag_is_here(name: str) -> None:
    flag = FOREIGN[name]
    here = [row[1] for row in ROWS if spelled(name) in re.findall(r"--[\w-]+", row[0].replace("_", "-"))]
    begins = "refused: " if flag.refused else "nothing: "
    assert any(spelled(flag.native) in text if flag.native else text.startswith(begins) for text in here), here
