"""docs/from-mpi4dl.md: its commands and programs run in order, and the names of ours that it gives are there."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

import halocline
from halocline.models.model import make
from halocline.plan.flags.dialects import FOREIGN, native
from halocline.plan.flags.fields import settings_of
from halocline.plan.flags.reader import name_of, read
from halocline.train.settings import Settings
from harness.processes import program, typed

TEXT = (Path(__file__).parents[2] / "docs" / "from-mpi4dl.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (halocline .*)$", TEXT, re.MULTILINE)
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))
(PLAN,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
(INI,) = re.findall(r"```ini\n(.*?)```", TEXT, re.DOTALL)
OURS = settings_of(Settings)


def test_our_names_are_there() -> None:
    names = set(re.findall(r"`halocline\.([\w.]+)", TEXT))
    assert len(names) > 6
    for name in names:
        attrgetter(name)(halocline)
    rows = [line.split(" | ")[1] for line in TEXT.splitlines() if line.startswith("|") and " | " in line]
    for flag in {flag for row in rows for flag in re.findall(r"--[\w-]+", row)} - {"--help"}:
        name_of(flag, OURS)
    for name in ("resnet-v1-N", "resnet-v2-N", "amoebanet-d"):
        assert f"`{name}`" in TEXT and make(name.replace("N", "20")).layers


def test_the_table_of_settings_says_what_the_flags_say() -> None:
    rows = re.findall(r"^\| (`\w+ = .*) \| `\[(\w+)\]` (.*) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 13
    kinds = {name: one.kind for name, one in OURS.items()} | {name: flag.kind for name, flag in FOREIGN.items()}
    for theirs, group, ours in rows:
        given, wanted = (dict(re.findall(r'`(\w+) = "?(.*?)"?`', side)) for side in (theirs, ours))
        found = native(read(kinds, [word for name, value in given.items() for word in (f"--{name}", value)]))
        assert wanted == {name: str(found[name]) for name in wanted}, theirs
        assert found.keys() <= {*wanted, "stages", "microbatches"} and all(
            OURS[name].group == group for name in wanted
        ), theirs


def test_its_ini_file_is_its_plan(tmp_path: Path) -> None:
    (tmp_path / "config.ini").write_text(INI)
    (tmp_path / "from_ini.py").write_text(FILES["from_ini.py"])
    ended = program("from_ini.py", directory=tmp_path)
    assert ended.code == 0, ended.err
    assert halocline.Plan.load(tmp_path / "plan.toml") == halocline.Plan.from_toml(PLAN)


@pytest.mark.slow
def test_its_commands_and_its_program_run(tmp_path: Path) -> None:
    assert len(COMMANDS) == 5 and set(FILES) == {"sp.py", "from_ini.py"}
    for line, ended in zip(COMMANDS, typed(COMMANDS, tmp_path), strict=True):
        assert ended.code == 0, f"{line}\n{ended}"
        assert "exact: " in ended.out or " verify " not in line
    assert (tmp_path / "plan.toml").read_text() == PLAN
    assert halocline.Plan.load(tmp_path / "gems.toml").schedule == "gems"
    (tmp_path / "sp.py").write_text(FILES["sp.py"])
    ended = program("sp.py", processes=5, directory=tmp_path)
    assert ended.code == 0, ended.err
    # Ranks may write into each other's lines, but not into each other's words.
    said = re.findall(r"rank (\d): loss ([\d.]+)", ended.out)
    assert len(said) == 10 and len({loss for _, loss in said}) == 2, ended.out
