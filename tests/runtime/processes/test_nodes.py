"""Two nodes: run.sh on each of two hosts. Their own names lead nowhere: only the interface towards node 0 will do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halocline.runtime.processes.nodes import Nodes, interface_towards
from halocline.train.settings import Settings
from halocline.train.trainer import Trainer
from harness.hosts import Host, hosts

ROOT = Path(__file__).parents[3]
MODEL = {"model": "gpt3-xl", "layers": 2, "hidden": 16, "heads": 2, "vocab": 32, "seq": 8, "dtype": "float64"}
TRAINING = {"optimizer": "adamw", "lr": 1e-3, "clip": 1.0, "weight_decay": 0.01}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    with hosts(tmp_path_factory.mktemp("hosts")) as two:
        yield two


def start(machines: list[Host], node: int, words: list[str], log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NNODES": "2", "NODE_RANK": str(node)}
    environment |= {"MASTER_ADDR": machines[0].address, "MASTER_PORT": "29511", "PYTHON": sys.executable}
    command = machines[node].command("bash", str(ROOT / "run.sh"), *words)
    with open(log, "wb") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)


def run(machines: list[Host], words: list[str], directory: Path) -> list[str]:
    """Both nodes to the end; what each said. Node 0 starts last: the other has to wait for it."""
    logs = [directory / f"node{node}.log" for node in range(2)]
    started = [start(machines, node, words, logs[node]) for node in (1, 0)]
    try:
        codes = [process.wait(600) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = [log.read_text() for log in logs]
    assert codes == [0, 0], "\n".join(said)
    return said


def metrics(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def words_of(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() if name != "model" for word in (f"--{name}", str(value))]


def test_two_nodes_train_as_one_device(machines: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four stages on two nodes of two processes; every rank's timing file is written on its own node."""
    words = [MODEL["model"], "2", "4", "--pp", "4", *words_of({**MODEL, **TRAINING})]
    words += ["--steps", "2", "--export_timing_csv", "true", "--run_dir", str(tmp_path / "two"), "--deadline", "900"]
    said = run(machines, words, tmp_path)
    assert "done: 2 steps" in said[0] and "done" not in said[1]
    for rank in range(4):
        assert len((tmp_path / "two" / f"instructions-{rank}.csv").read_text().splitlines()) > 1 + 2 * 8

    monkeypatch.chdir(tmp_path)
    more = {"steps": 2, "batch_size": 8, "microbatches": 4, "save_every": 0, "evaluation_fraction": 0.0}
    Trainer(Settings.of(**MODEL, **TRAINING, **more, run_dir="one")).fit()
    losses = [[entry["loss"] for entry in metrics(tmp_path / name)] for name in ("two", "one")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


def test_a_lost_node_is_noticed_and_named(machines: list[Host], tmp_path: Path) -> None:
    words = ["gpt3-xl", "1", "2", "--pp", "2", *words_of(MODEL), "--steps", "1000000", "--deadline", "900"]
    words += ["--run_dir", str(tmp_path / "run")]
    logs = [tmp_path / f"node{node}.log" for node in range(2)]
    nodes = [start(machines, node, words, logs[node]) for node in range(2)]
    try:
        end = time.monotonic() + 600
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert all(process.poll() is None for process in nodes), logs[0].read_text() + logs[1].read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        os.killpg(nodes[1].pid, signal.SIGKILL)
        assert nodes[0].wait(600) == 1, "before any deadline"
    finally:
        for process in nodes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    errors = [line for line in logs[0].read_text().splitlines() if line.startswith("halocline: error: ")]
    assert len(errors) == 1 and "rank 1" in errors[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((0,), "0 nodes"),
        ((2, 2, "10.0.0.1", 29500), "NODE_RANK=0 to 1"),
        ((2, 0, "localhost", 29500), "MASTER_ADDR"),
        ((2, 0, "127.0.1.1", 29500), "MASTER_ADDR"),
        ((2, 0, "10.0.0.1", 0), "port 0"),
        ((1, 0, "localhost", 70000), "port 70000"),
    ],
)
def test_nodes_that_cannot_meet_are_refused(settings: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Nodes(*settings)


def test_shares_are_whole() -> None:
    assert Nodes(2, 1, "10.0.0.1", 29500).share(8) == 4
    with pytest.raises(ValueError, match=r"3 / 2 = 1\.5"):
        Nodes(2, 1, "10.0.0.1", 29500).share(3)


def test_the_loopback_leads_nowhere() -> None:
    assert interface_towards("127.0.0.1", 29500) is None
    assert interface_towards("no.such.host.invalid", 29500) is None
