"""The real Zeus pipeline-frequency client against this server: two ranks, over a token, playing a given plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.plan.plan import Plan
from halocline.schedule.generate import generate
from halocline.schedule.instruction import COMPUTE
from harness.checks import FOLDER
from harness.serving import Near

# Zeus forgets to name some of what it imports, and names versions its code does not need: it reads its models with
# pydantic's old interface, which new versions still carry. So it comes without what it asks for, beside our own.
PACKAGES = ("zeus==0.16.0", "aiofiles==25.1.0", "pandas", "tzdata")
TOKEN = "0123456789abcdef"
MICROBATCHES = 3


@pytest.fixture(scope="module")
def zeus(pytestconfig: pytest.Config) -> Path:
    """A folder with Zeus in it, kept between runs."""
    folder = pytestconfig.cache.mkdir("zeus-0.16.0")  # type: ignore[union-attr]
    if not (folder / "complete").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
        done = subprocess.run([*command, *PACKAGES], capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"Zeus cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
        (folder / "complete").touch()
    return Path(folder)


def test_zeus_plays_what_this_server_says(near: Callable[..., Near], zeus: Path, tmp_path: Path) -> None:
    rows = [
        [instruction.kind for instruction in row if instruction.kind in COMPUTE]
        for row in generate(Plan.uniform(2, microbatches=MICROBATCHES)).ranks
    ]
    cycle = [1400, 1200, 1200, 1000]
    plan = FrequencyPlan(
        1.0, 1.0, 10.0,
        tuple(tuple((kind, cycle[(at + rank) % 4]) for at, kind in enumerate(row)) for rank, row in enumerate(rows)),
    )  # fmt: skip
    server = near(scheduler="point-solution", plans=(plan,), microbatches=MICROBATCHES, token=TOKEN)
    url = server.url.replace("http://", f"http://zeus:{TOKEN}@")
    environment = {**os.environ, "PYTHONPATH": str(zeus), "OMP_NUM_THREADS": "1"}
    outs = [tmp_path / f"clocks-{rank}" for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [
                sys.executable, "-W", "ignore", str(FOLDER / "zeus_rank.py"),
                str(rank), url, str(tmp_path / "rendezvous"), json.dumps(rows[rank]), str(outs[rank]),
            ],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        error = rank.communicate(timeout=240)[1]
        assert rank.returncode == 0, error

    for out, row in zip(outs, plan.frequencies):
        # The client begins at the highest clock and sets one only where it changes; there are two steps.
        expected, now = [1400], 1400
        for frequency in [frequency for _, frequency in row] * 2:
            if frequency != now:
                expected.append(frequency)
                now = frequency
        assert out.read_text().split() == [*map(str, expected), "reset"]
    (job,) = server.ask("GET", "/jobs", headers={"Authorization": f"Bearer {TOKEN}"})[1]
    assert (job["metadata"], job["registered"], job["phase"]) == ("a Zeus client", 2, "playing")
