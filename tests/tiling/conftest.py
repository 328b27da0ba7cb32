"""Puts this folder on the import path, so that tests can say `from ranks import assert_exact`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def close_processes() -> Iterator[None]:
    """End the processes that `ranks.on_processes` started and kept."""
    yield
    import ranks

    ranks.close()
