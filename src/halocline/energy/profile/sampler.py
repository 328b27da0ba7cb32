"""The sampler: every advance of an energy counter, with its time. A real counter is looked at by a thread many times
between two advances; a simulated one keeps its advances itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from halocline.energy.device.meter import Meter, Reading

INTERVAL = 0.01
"""Seconds between two looks: a tenth of the time between advances of NVML's counter."""


class CounterWatch:
    """Watches a meter until it is closed."""

    def __init__(self, meter: Meter, interval: float = INTERVAL) -> None:
        self._meter, self._interval = meter, interval
        self._own: Callable[[], list[Reading]] | None = getattr(meter, "changes", None)
        self._found: list[Reading] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        if self._own is None:
            self._thread = threading.Thread(target=self._look, name="halocline-meter", daemon=True)
            self._thread.start()

    def take(self) -> list[Reading]:
        """The advances since this was last asked."""
        if self._own is not None:
            return self._own()
        with self._lock:
            found, self._found = self._found, []
        return found

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        last = self._meter.energy()
        while not self._over.wait(self._interval):
            energy = self._meter.energy()
            if energy != last:
                last = energy
                with self._lock:
                    self._found.append(Reading(self._meter.time(), energy))
