"""The demonstration: an energy server and a training run on simulated devices, started as a user would start them, from
the first profile to the answer to a straggler. It only starts commands and reads what the run measured.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halocline.energy.client import Client, ServerGone
from halocline.energy.server_player import read_windows
from halocline.energy.simulated.rack import ClockFile

HALOCLINE = (sys.executable, "-c", "import sys; from halocline.cli import main; sys.exit(main())")
STAGES = 4
MODEL = (
    "gpt3-small --layers 10 --hidden 32 --heads 2 --vocab 64 --seq 16 --pp 4 --partition_method custom:0,4,7,10,13 "
    "--microbatches 8 --batch-size 16"
)
"""A tiny GPT whose stages are as unequal as real ones: 4, 3, 3 and 3 layers."""
RUN = "--device cpu --meter simulated --num_warmup_steps 1 --evaluation-fraction 0 --save-every 0 --steps 1000000"
WINDOWS = 2
"""Windows of each kind that are waited for; the last of them is what counts."""


Say = Callable[[str], None]


@dataclass(frozen=True)
class Measure:
    """An iteration as the run measured it."""

    time: float
    """Seconds."""
    energy: float
    """Joules of all devices."""


@dataclass(frozen=True)
class DemoOutcome:
    """What the demonstration saw."""

    before: Measure
    """Everything at the highest frequency."""
    after: Measure
    """The fastest plan."""
    factor: float
    straggler: Measure
    """With somebody else `factor` times as slow."""
    waiting: Measure
    """The same at the highest frequency: measured before, and then waiting at the measured blocking power."""
    blocking_power: float
    windows: int
    """How many windows of steps were played."""
    reset: bool = False
    """Whether all clocks were given back."""


def demonstrate(directory: Path, factor: float, say: Say, patience: float = 240.0) -> DemoOutcome:
    """Runs it all, with everything written under `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    run = directory / "run"
    if run.exists():
        raise ValueError(f"{run} already holds a run: choose another directory, or remove it")
    end = time.monotonic() + patience
    serve = f"energy serve --port 0 --stride 4 --data {directory / 'energy.sqlite'}"
    log, train_log = directory / "server.log", directory / "train.log"
    with _started(serve.split(), log) as server:
        address = _address(server, log, end)
        say(f"energy server on {address}")
        words = f"train {MODEL} {RUN} --num_prof_steps 4 --perseus_url {address} --run-dir {run}"
        say(f"halocline train {MODEL}")
        with _started(words.split(), train_log) as training:
            outcome = _watch(Client(address), run, training, train_log, factor, say, end)
            training.send_signal(signal.SIGINT)
            training.wait(60)
    clocks = [ClockFile(run / "devices" / f"clock-{rank}.txt").read() for rank in range(STAGES)]
    return replace(outcome, reset=clocks == [None] * STAGES)


def _watch(
    client: Client, run: Path, training: subprocess.Popen[bytes], log: Path, factor: float, say: Say, end: float
) -> DemoOutcome:
    """Waits for each phase in turn and measures it."""

    def until(found: Callable[[list[list[dict[str, Any]]]], bool]) -> list[list[dict[str, Any]]]:
        while True:
            rounds = _rounds(run)
            if found(rounds):
                return rounds
            if training.poll() is not None:
                raise ValueError(f"training ended with exit code {training.returncode}: {_last_line(log)}; see {log}")
            if time.monotonic() > end:
                raise ValueError(f"time is up after {len(rounds)} windows of steps: give it more --patience; see {log}")
            time.sleep(0.1)

    before = _measure(until(lambda rounds: len(rounds) > 0)[0])
    say(f"all at the highest frequency: {before.time:.3f} s and {before.energy:.0f} J an iteration; profiling")
    rounds = until(lambda rounds: len(_of(rounds, "deployed")) >= WINDOWS)
    profiled = len(_of(rounds, "profiling"))
    say(f"profiled in {profiled} windows, solved and deployed")
    after = _measure(_of(rounds, "deployed")[-1])
    known = len(rounds)
    client.straggler(client.jobs()[0]["job"], factor)
    say(f"told the server of a straggler, {factor:g} times as slow")
    limit = _planned(rounds[-1]) * (1 + factor) / 2
    rounds = until(lambda rounds: len([r for r in rounds[known:] if _planned(r) > limit]) >= WINDOWS)
    slow = _measure(rounds[-1])
    blocking = sum(window["blocking_power"] for window in rounds[-1]) / STAGES
    late = max(slow.time, before.time * factor)
    waiting = Measure(late, before.energy + STAGES * blocking * (late - before.time))
    return DemoOutcome(before, after, factor, slow, waiting, blocking, len(rounds))


def _rounds(run: Path) -> list[list[dict[str, Any]]]:
    """The windows that all ranks have played, each with every rank's line."""
    return [list(lines) for lines in zip(*(read_windows(run, rank) for rank in range(STAGES)))]


def _of(rounds: Sequence[list[dict[str, Any]]], phase: str) -> list[list[dict[str, Any]]]:
    return [lines for lines in rounds if lines[0]["phase"] == phase]


def _planned(lines: list[dict[str, Any]]) -> float:
    return float(lines[0]["planned_time"] or 0.0)


def _measure(lines: list[dict[str, Any]]) -> Measure:
    """An iteration is as long as on any rank; its energy is that of all of them."""
    return Measure(sum(line["time"] for line in lines) / len(lines), sum(line["energy"] for line in lines))


@contextmanager
def _started(words: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A halocline command beside this one, ended with the block."""
    with open(log, "wb") as file:
        process = subprocess.Popen([*HALOCLINE, *words], stdout=file, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    process.send_signal(number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(10)


def _address(server: subprocess.Popen[bytes], log: Path, end: float) -> str:
    """Where the server says it listens."""
    while time.monotonic() < end:
        words = log.read_text(encoding="utf-8", errors="replace").split()
        found = next((word for word in words if word.startswith("http://")), None)
        if found is not None:
            return found
        if server.poll() is not None:
            raise ValueError(f"the energy server did not start: {_last_line(log)}")
        time.sleep(0.05)
    raise ServerGone(f"the energy server did not say where it listens; see {log}")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
