"""Rates: how often each of many askers may ask. A bucket each, filled steadily, emptied by asking."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

_MOST = 65536
"""Buckets kept; then those that are full, which say nothing, are dropped."""


class Rates:
    """At most `rate` times a second, and twice as often at once."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._most = max(1.0, 2 * rate)
        self._clock = clock
        self._buckets: dict[Hashable, tuple[float, float]] = {}
        """Asker -> what was left, and when."""

    def wait(self, asker: Hashable) -> float:
        """0 where the asker may go on; else the seconds until it may."""
        now = self._clock()
        left, since = self._buckets.get(asker, (self._most, now))
        left = min(self._most, left + (now - since) * self.rate)
        if left < 1:
            return (1 - left) / self.rate
        if asker not in self._buckets and len(self._buckets) >= _MOST:
            self._sweep(now)
        self._buckets[asker] = (left - 1, now)
        return 0.0

    def _sweep(self, now: float) -> None:
        full = [
            asker for asker, (left, since) in self._buckets.items() if left + (now - since) * self.rate >= self._most
        ]
        for asker in full or list(self._buckets)[: _MOST // 2]:
            del self._buckets[asker]
