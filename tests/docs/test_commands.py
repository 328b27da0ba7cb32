"""docs/commands.md: its table has every group of settings, and flags that are in it."""

from __future__ import annotations

import re
from pathlib import Path

from halocline.plan.flags.fields import settings_of
from halocline.plan.flags.reader import spelled
from halocline.train.settings import Settings

TEXT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


def test_the_groups() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (`--.*) \|$", TEXT, re.MULTILINE)
    known = settings_of(Settings).values()
    assert [group for group, _ in rows] == list(dict.fromkeys(one.group for one in known))
    for group, flags in rows:
        theirs = {spelled(one.flag) for one in known if one.group == group}
        assert set(re.findall(r"--[\w-]+", flags)) <= theirs
