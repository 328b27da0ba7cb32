"""Commands of halocline inside this process, by their answers."""

from __future__ import annotations

from typing import Any

import pytest

from halocline.cli import main


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line that must succeed; returns what it printed."""

    def run(line: str) -> str:
        code = main(line.split())
        out, err = capsys.readouterr()
        assert (code, err) == (0, ""), err
        return out

    return run
