"""Puts this folder and the tests' of tiling and runtime on the import path, and ends the processes that tests kept."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "tiling", HERE.parent / "runtime"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture(scope="session", autouse=True)
def close_processes() -> Iterator[None]:
    yield
    import ranks

    ranks.close()
