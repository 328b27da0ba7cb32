"""The setter: a thread that sets the clock when the device has come to a mark, so that training never waits for a
driver. It is asked only where the frequency changes.
"""

from __future__ import annotations

import threading
from collections import deque

from halocline.energy.device.clock import GuardedClock
from halocline.schedule.events import Mark, Marks


class Setter:
    """Sets a clock from a thread of its own until it is closed."""

    def __init__(self, clock: GuardedClock, marks: Marks) -> None:
        self._clock, self._marks = clock, marks
        self._asked: deque[tuple[Mark, int | None] | None] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._last: int | None = None
        self._thread = threading.Thread(target=self._run, name="halocline-clock", daemon=True)
        self._thread.start()

    def at(self, mark: Mark, frequency: int | None) -> None:
        """When the device has come to the mark, run at this many MHz, or (None) at the device's own choice."""
        if frequency == self._last:
            return
        self._last = frequency
        with self._changed:
            self._asked.append((mark, frequency))
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until all that was asked for is set."""
        if not self._asked and not self._busy:
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._asked and not self._busy)

    def close(self) -> None:
        """Set nothing more."""
        with self._changed:
            self._asked.clear()
            self._asked.append(None)
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked)
                self._busy = True
                wanted = self._asked.popleft()
            try:
                if wanted is None:
                    return
                self._marks.wait(wanted[0])
                self._clock.set(wanted[1])
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
