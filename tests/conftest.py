"""What holds for all tests: examples are the same on every run, a busy machine is no failure, long tests come first,
and processes that tests kept for one another end with the last of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "halocline",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("halocline")


def pytest_configure(config: pytest.Config) -> None:
    # A shell ignores Ctrl-C in what it runs in the background, and so would every process that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PYTHON"] = sys.executable  # for run.sh, which would take the Python of .venv
    # What a garbage collector finds belongs to some test before: it is shown, but fails none that comes later.
    for category in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
        config.addinivalue_line("filterwarnings", f"default::{category}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # At the end of a run, no worker waits long for another.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session", autouse=True)
def close_processes() -> Iterator[None]:
    """End the processes that `harness.ranks.on_processes` started and kept; who ran no rank need not load torch."""
    yield
    if "harness.ranks" in sys.modules:
        sys.modules["harness.ranks"].close()
