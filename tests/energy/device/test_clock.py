"""The guarded clock: told only of changes, and given back however a process ends, by real processes and signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from halocline.energy.device.clock import GuardedClock, Setter
from halocline.energy.device.meter import Clock, ClockRefused
from halocline.energy.simulated.rack import ClockFile
from halocline.schedule.events import TimeMarks
from harness.checks import FOLDER
from harness.checks.clock import FileClock

WAYS = {
    "return": 0,
    "exception": 1,
    "sys.exit": 3,
    "os._exit": 4,
    "abort": -signal.SIGABRT,
    "SIGINT": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
    "SIGKILL": -signal.SIGKILL,
}
"""How a process ends -> its exit code."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int | None, int, ClockFile]]:
    """Way -> the frequency while the process ran, its exit code, and the clock's file. All at once."""
    directory = tmp_path_factory.mktemp("clocks")
    running = {}
    for way in WAYS:
        path = directory / f"{way}.txt"
        command = [sys.executable, str(FOLDER / "clock.py"), str(path), way]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        running[way] = subprocess.Popen(command, **pipes), ClockFile(path)  # type: ignore[call-overload]
    found = {}
    for way, (process, file) in running.items():
        assert process.stdout.readline() == b"set\n"
        while_running = file.read()
        process.stdin.write(b"\n")
        process.stdin.flush()
        if way.startswith("SIG"):
            assert process.stdout.readline() == b"waiting\n"
            process.send_signal(getattr(signal, way))
        code = process.wait(600)
        process.stdin.close()
        process.stdout.close()
        found[way] = while_running, code, file
    return found


@pytest.mark.parametrize("way", WAYS)
def test_the_clock_is_given_back(way: str, ended: dict[str, tuple[int | None, int, ClockFile]]) -> None:
    while_running, code, file = ended[way]
    assert while_running == 900
    assert code == WAYS[way]
    end = time.monotonic() + 300  # the warden needs a moment after a death
    while file.read() is not None and time.monotonic() < end:
        time.sleep(0.02)
    assert file.read() is None


def test_the_device_is_told_of_changes_only(tmp_path: Path) -> None:
    class Counting(FileClock):
        told: list[int] = []  # noqa: RUF012

        def set(self, frequency: int) -> None:
            self.told.append(frequency)
            super().set(frequency)

    device = Counting(str(tmp_path / "clock.txt"))
    assert isinstance(device, Clock)
    with closing(GuardedClock(device)) as clock:
        for frequency in (1410, 1410, 900, 900, 900, 1410):
            assert clock.set(frequency)
        assert device.file.read() == 1410
    assert device.told == [1410, 900, 1410]
    assert device.file.read() is None
    assert clock.set(900) is False, "closed is closed: a thread that comes late sets nothing"
    assert device.file.read() is None


def test_a_clock_that_was_never_set_is_never_reset(tmp_path: Path) -> None:
    class Untouchable(FileClock):
        def reset(self) -> None:
            raise AssertionError("somebody else may have set it")

    with closing(GuardedClock(Untouchable(str(tmp_path / "clock.txt")))) as clock:
        assert clock.set(None)


def test_an_unknown_frequency_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with closing(GuardedClock(FileClock(str(tmp_path / "clock.txt")))) as clock:
        with pytest.raises(ValueError, match=r"1000 MHz cannot be set: .* 3 frequencies, 1410 to 900 MHz"):
            clock.set(1000)


def test_without_the_privilege_it_is_said_once_and_goes_on(tmp_path: Path) -> None:
    class Locked(FileClock):
        def set(self, frequency: int) -> None:
            raise ClockRefused("only root may set this clock")

    said: list[str] = []
    with closing(GuardedClock(Locked(str(tmp_path / "clock.txt")), said.append)) as clock:
        assert not clock.set(900)
        assert not clock.set(1410)
        assert clock.frequencies() == []
        assert not (tmp_path / "clock.txt").exists()
    assert said == ["only root may set this clock; measuring goes on at the device's own clock"]


def test_a_device_that_tells_no_frequencies(tmp_path: Path) -> None:
    class Mute(FileClock):
        def frequencies(self) -> list[int]:
            raise ClockRefused("no clocks here")

    said: list[str] = []
    with closing(GuardedClock(Mute(str(tmp_path / "clock.txt")), said.append)) as clock:
        assert clock.frequencies() == []
        assert not clock.set(900)
    assert len(said) == 1


def test_the_setter_waits_for_the_device_and_not_the_caller(tmp_path: Path) -> None:
    reached = threading.Event()

    class Later(TimeMarks):
        def wait(self, mark: object) -> None:
            assert reached.wait(300)

    device = FileClock(str(tmp_path / "clock.txt"))
    with closing(GuardedClock(device)) as clock:
        setter = Setter(clock, Later())
        setter.at("a mark", 900)
        setter.at("a mark", 900)
        assert device.file.read() is None, "the device has not come there yet"
        reached.set()
        setter.settle()
        assert device.file.read() == 900
        assert clock.sets == 1
        setter.close()


def test_the_state_of_a_clock_is_one_line(tmp_path: Path) -> None:
    file = ClockFile(tmp_path / "clock.txt")
    assert file.read() is None
    for frequency in (1410, 210, None, 900):
        file.write(frequency)
        assert ClockFile(tmp_path / "clock.txt").read() == frequency
        assert len((tmp_path / "clock.txt").read_text()) == 12
