"""A clock that is safe to hold: the device is told only where the frequency changes, and gets its own clock back
however this process ends; and who sets it while training goes on (`Setter`).

    the process ends by ...                     and the clock is reset by ...
    returning, an exception, Ctrl-C, sys.exit   close(), called by whoever made it or at exit
    SIGTERM, SIGKILL, os._exit, a crash         the warden, a process that waits for this one to be gone

No signal is handled in this process: a handler would run only once a wait inside a communication library is over.

The warden is this file, run as a command by the guarded clock, which holds its input:

    python -m halocline.energy.device.clock nvml GPU-8f3c...

It waits for its input to end. "done" means that the clock was reset; an end without it, that nobody else will.
"""

from __future__ import annotations

import atexit
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from halocline.energy.device.meter import Clock, ClockRefused

if TYPE_CHECKING:  # the warden needs no schedules
    from halocline.schedule.events import Mark, Marks

_WATCHING = b"watching\n"
"""What the warden says once nothing can end it but the end of whom it watches."""


class GuardedClock:
    """Wraps a clock. Safe to use from several threads."""

    def __init__(self, clock: Clock, say: Callable[[str], None] = lambda _: None) -> None:
        self._clock, self._name, self._say = clock, clock.name, say
        self._lock = threading.RLock()  # Ctrl-C may close it while the same thread sets it
        self._current: int | None = None
        self._touched = self._closed = False
        self.refused = False
        """Whether the device does not let this process set its clock."""
        self._warden: subprocess.Popen[bytes] | None = None
        self.sets = 0
        """How often the device was told."""
        try:
            self._frequencies = clock.frequencies()
        except ClockRefused as error:
            self._frequencies = []
            self._refuse(error)

    @property
    def stuck(self) -> int | None:
        """MHz at which the device runs, if it does not let this process set its clock."""
        return self._clock.actual() if self.refused else None

    def frequencies(self) -> list[int]:
        """MHz that can be set, highest first; none where none can."""
        return [] if self.refused else list(self._frequencies)

    def set(self, frequency: int | None) -> bool:
        """Run at this many MHz, or (None) at the device's own choice; whether the device does so now. Where it refuses,
        that is said once and measuring goes on."""
        with self._lock:
            if self._closed or self.refused:
                return frequency is None
            if frequency == self._current:
                return True
            if frequency is None:
                self.reset()
                return True
            if frequency not in self._frequencies:
                ends = f", {self._frequencies[0]} to {self._frequencies[-1]} MHz" if self._frequencies else ""
                raise ValueError(
                    f"{frequency} MHz cannot be set: {self._name} has {len(self._frequencies)} frequencies{ends}; use "
                    f"a plan made for this device"
                )
            try:
                self._watch()
                self._clock.set(frequency)
            except ClockRefused as error:
                self._refuse(error)
                return False
            self._current = frequency
            self.sets += 1
            return True

    def reset(self) -> None:
        """Give the device its own clock back."""
        with self._lock:
            if self._touched:
                try:
                    self._clock.reset()
                except ClockRefused as error:
                    self._refuse(error)
            self._current = None

    def close(self) -> None:
        """Reset for good: nothing is set any more."""
        with self._lock:
            if self._closed:
                return
            self.reset()
            self._closed = True
            atexit.unregister(self.close)
            if self._warden is not None:
                self._warden.communicate(b"done\n")

    def _refuse(self, error: ClockRefused) -> None:
        if not self.refused:
            self.refused, self._current = True, None
            self._say(f"{error}; measuring goes on at the device's own clock")

    def _watch(self) -> None:
        """Before the first set: from now on there is something to undo."""
        if self._touched:
            return
        atexit.register(self.close)
        command = [sys.executable, "-m", "halocline.energy.device.clock", *self._clock.rescue()]
        try:
            # A session of its own: what ends this process's group must not end the warden.
            self._warden = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise ClockRefused(f"no process could be started to reset the clock of {self._name}: {error}") from error
        assert self._warden.stdout is not None
        if self._warden.stdout.readline() != _WATCHING:
            raise ClockRefused(f"the process that would reset the clock of {self._name} has ended: see what it said")
        self._touched = True


class Setter:
    """Sets a clock when the device has come to a mark, from a thread of its own, so that training never waits for a
    driver. It is asked only where the frequency changes."""

    def __init__(self, clock: GuardedClock, marks: Marks) -> None:
        self._clock, self._marks = clock, marks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="halocline-clock")
        self._latest: Future[None] | None = None
        self._last: int | None = None

    def at(self, mark: Mark, frequency: int | None) -> None:
        """When the device has come to the mark, run at this many MHz, or (None) at the device's own choice."""
        if frequency != self._last:
            self._last = frequency
            self._latest = self._thread.submit(self._set, mark, frequency)

    def settle(self) -> None:
        """Wait until all that was asked for is set."""
        if self._latest is not None:
            self._latest.result()

    def close(self) -> None:
        """Set nothing more."""
        self._thread.shutdown(cancel_futures=True)

    def _set(self, mark: Mark, frequency: int | None) -> None:
        self._marks.wait(mark)
        self._clock.set(frequency)


# -- the warden ---------------------------------------------------------------------------------------------------


def watch(words: Sequence[str]) -> int:
    """The warden's work; its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.buffer.write(_WATCHING)
    sys.stdout.buffer.flush()
    if sys.stdin.buffer.read().endswith(b"done\n"):
        return 0
    try:
        _reset(*words)
    except (ClockRefused, ValueError, OSError) as error:
        print(f"halocline: the clock of {' '.join(words)} could not be reset: {error}", file=sys.stderr)
        return 1
    return 0


def _reset(kind: str, name: str) -> None:
    """Reset the clock that `Clock.rescue()` named."""
    if kind == "nvml":
        from halocline.energy.device.nvml import Nvml

        Nvml(name).reset()
    elif kind == "zeus":
        from halocline.energy.device.devices import ZeusGpu, open_zeus

        found = open_zeus("gpu", int(name))
        assert isinstance(found, ZeusGpu)
        found.reset()
    elif kind == "simulated":
        from halocline.energy.simulated.rack import ClockFile

        ClockFile(name).write(None)
    else:
        raise ValueError(f"{kind!r} is no clock: use nvml, zeus or simulated")


if __name__ == "__main__":
    sys.exit(watch(sys.argv[1:]))
