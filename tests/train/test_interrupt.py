"""Ctrl-C and SIGTERM in a process: heard once, agreed on by all ranks, and gone when the run is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from halocline import Observer
from halocline.runtime.processes.world import World
from halocline.train import Settings, Trainer
from halocline.train.checkpoint import complete
from halocline.train.interrupt import EXIT_CODE, Interrupt
from halocline.train.metrics import read
from halocline.train.start import _report
from halocline.train.trainer import Outcome

ALONE = World(0, 1, torch.device("cpu"))


def wait_for(condition: object) -> None:
    end = time.monotonic() + 600
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_signal_is_heard_and_the_old_handlers_come_back() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    said: list[str] = []
    with Interrupt(said.append) as interrupt:
        assert not interrupt.agreed(ALONE)
        begin = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # the launcher repeats what the terminal sent: it counts as one
        wait_for(lambda: interrupt.asked)
        assert interrupt.agreed(ALONE)
    assert time.monotonic() - begin >= 1  # until it repeats nothing any more
    assert len(said) == 1
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    wait_for(lambda: all(t.name != "interrupt" for t in threading.enumerate()))


def test_outside_the_main_thread_it_hears_nothing_and_breaks_nothing() -> None:
    found = []

    def work() -> None:
        with Interrupt() as interrupt:
            found.append(interrupt.agreed(ALONE))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_the_step_is_finished_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Interrupt] = []

    class Kept(Interrupt):
        def __enter__(self) -> Interrupt:
            entered.append(self)
            return super().__enter__()

    class Pressing(Observer):
        """An observer that presses Ctrl-C in the middle of the third step."""

        def step_begins(self, step: int, mark: object) -> None:
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)

        def step_ends(self, step: int, mark: object) -> None:
            if step == 2:
                wait_for(lambda: entered[-1].asked)  # the listener is another thread

    given = {"model": "small-cnn", "batch_size": 4, "samples": 40, "steps": 9, "device": "cpu"}
    settings = Settings.of(**given, run_dir=str(tmp_path / "run"))
    monkeypatch.setattr("halocline.train.trainer.Interrupt", Kept)
    outcome = Trainer(settings, observers=[Pressing()]).fit()
    assert outcome.interrupted and outcome.step == 3
    assert [p.name for p in complete(tmp_path / "run" / "checkpoints")] == ["step-000003"]
    again = Trainer(settings.saying({"resume": "latest"})).fit()
    assert again.step == 9 and not again.interrupted
    straight = Settings.of(**given, run_dir=str(tmp_path / "straight"))
    Trainer(straight).fit()
    ours, theirs = (
        [(e["step"], e["loss"]) for e in read(tmp_path / name / "metrics.jsonl") if e["kind"] == "step"]
        for name in ("run", "straight")
    )
    assert ours == theirs


def test_once_more_ends_a_process_that_hangs_in_torch(tmp_path: Path) -> None:
    """While the main thread waits inside torch Python handles no signal; the listener does."""
    code = (
        "import sys, time, torch\n"
        "from datetime import timedelta\n"
        "import torch.distributed as dist\n"
        "from halocline.train.interrupt import Interrupt\n"
        "store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "with Interrupt(lambda text: print(text, flush=True)):\n"
        "    print('here', flush=True)\n"
        "    store.wait(['never'], timedelta(seconds=300))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().startswith("interrupted")
        time.sleep(1.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_is_not_saved_is_not_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    """With --save-every 0, as in now-dl's scripts, there is nothing to go on from, or only what came before."""
    for checkpoint, saved in (
        ("run/checkpoints/step-000003", True),
        ("", False),
        ("run/checkpoints/step-000001", False),
    ):
        assert _report(Outcome(3, 1.0, {}, "run", checkpoint, interrupted=True), speaks=True) == EXIT_CODE
        assert ("--resume run" in capsys.readouterr().err) == saved
