"""docs/tiling.md says what the tests try, and its examples run."""

import re
import subprocess
import sys
from pathlib import Path

import torch

from halocline.tiling import tensor
from harness.processes import program
from harness.ranks import assert_exact

ROOT = Path(__file__).parent.parent.parent


def test_the_tables_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_tiling_table.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rule_of_the_document_is_exact() -> None:
    text = (ROOT / "docs" / "tiling.md").read_text(encoding="utf-8")
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "@tiling.rule" in block)
    registered = dict(tensor._RULES)
    try:
        exec(example, {})
        assert len(tensor._RULES) == len(registered) + 2
        assert_exact(lambda x: torch.linalg.det(x), (2, 4, 5, 5), grid=(1, 3))
        assert_exact(lambda x: x.permute(0, 2, 3, 1).unflatten(-1, (2, 2)).det(), (2, 4, 7, 5), grid=(1, 3))
    finally:
        tensor._RULES.clear()
        tensor._RULES.update(registered)


def test_the_example_equals_one_device() -> None:
    ended = program(ROOT / "examples" / "tiles.py", processes=4, directory=ROOT)
    assert ended.code == 0, ended.err
    assert ended.out.count("largest difference from one device") == 4, ended.out
