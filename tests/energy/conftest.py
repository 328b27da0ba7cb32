"""Servers to talk to: inside this process, or their own where they die."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halocline.energy.server.settings import ServerSettings
from harness.serving import Near, Own


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Callable[..., Near]]:
    """Starts servers in this process, on loopback."""
    started: list[Near] = []

    def start(**settings: Any) -> Near:
        started.append(Near(tmp_path / f"{len(started)}.sqlite", ServerSettings(**settings)))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Near]:
    """One server for the tests of a file that do not mind each other."""
    server = Near(tmp_path_factory.mktemp("shared") / "shared.sqlite", ServerSettings(rank_timeout=20.0))
    yield server
    server.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[..., Own]]:
    """Starts servers as processes, by the command line."""
    started: list[Own] = []

    def start(*options: str, data: str = "own.sqlite", **more: Any) -> Own:
        started.append(Own(tmp_path / data, *options, **more))
        return started[-1]

    yield start
    for server in started:
        server.kill()
