"""Ctrl-C and SIGTERM: the first asks for an end after the step, another ends the process at once.

A thread hears them, for the main thread may be waiting for a message inside torch, where Python handles no signal. A
launcher may repeat what the terminal has sent already, so signals within a second count as one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType, TracebackType
from typing import Any

import torch

from halocline.runtime.processes.world import World

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 130
_ONE = 1.0
"""Seconds within which signals count as one."""


class Interrupt:
    """Hears signals while it is entered, in the main thread of a process; elsewhere it hears none."""

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self.say = say
        self.asked = False
        """Whether this process was asked to end."""
        self._first = 0.0
        """When it was."""
        self._before: dict[int, Any] = {}
        self._old_fd = -1
        self._ends: tuple[int, int] | None = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            hear, speak = os.pipe()
            os.set_blocking(speak, False)
            self._ends = hear, speak
            self._old_fd = signal.set_wakeup_fd(speak, warn_on_full_buffer=False)
            for number in SIGNALS:
                self._before[number] = signal.signal(number, _ignore)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # what `deaf` has kept back is heard now
            threading.Thread(target=self._listen, args=(hear,), name="interrupt", daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ends is not None:
            if self.asked:
                # What a launcher repeats must still meet this handler. It could end a process that waits for torch's
                # launcher to take its outcome, and the launcher would then wait for it for ever.
                time.sleep(max(0.0, self._first + _ONE - time.monotonic()))
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._old_fd)
            os.close(self._ends[1])  # the listener reads the end and closes the other
            self._ends = None

    def _listen(self, hear: int) -> None:
        while heard := os.read(hear, 64):
            if not set(heard) & set(SIGNALS):
                continue
            now = time.monotonic()
            if not self.asked:
                self._first, self.asked = now, True
                if signal.SIGINT in heard:  # somebody looks on
                    self.say("interrupted: leaving after this step; once more to stop at once")
            elif now - self._first > _ONE:
                _leave()
        os.close(hear)

    def agreed(self, world: World) -> bool:
        """Whether any rank was asked to end. Every rank calls this after each step and hears the same."""
        asked = torch.tensor(float(self.asked), device=world.device)
        return bool(world.sum(asked, label="sum of interrupts"))


@contextmanager
def deaf() -> Iterator[None]:
    """Processes started inside do not hear Ctrl-C before they enter an `Interrupt`: it would break into loading."""
    resource_tracker.ensure_running()  # starting it later would undo this
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The listener has heard it. A handler of ours must be there, or the signal would end the process."""


def _leave() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h\n")  # the progress bar hides the cursor
        sys.stderr.flush()
    os._exit(EXIT_CODE)
