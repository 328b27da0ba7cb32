"""docs/plans.md: its table says of every flag of now-dl and Merak what it is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from halocline.plan.flags.dialects import FOREIGN
from halocline.plan.flags.reader import spelled

TEXT = (Path(__file__).parents[2] / "docs" / "plans.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| `--")]


@pytest.mark.parametrize("name", FOREIGN)
def test_the_table_names_what_a_flag_is_here(name: str) -> None:
    row = next(row for row in ROWS if spelled(name) in row.replace("_", "-").split(" | ")[0])
    here = row.split(" | ")[1]
    assert spelled(FOREIGN[name].native) in here if FOREIGN[name].native else here.startswith("nothing: ")
