"""Puts this folder and the tiling tests' on the import path, and ends the processes that tests started and kept."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "tiling"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture(scope="session", autouse=True)
def close_processes() -> Iterator[None]:
    yield
    import ranks

    ranks.close()
