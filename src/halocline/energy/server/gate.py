"""A gate: where ranks wait until all of them have come. Knows ranks by number only."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable


class Gate:
    """Opens once: when the last of `size` ranks has come, `decide` runs, and then all go through."""

    def __init__(self, size: int, decide: Callable[[], Awaitable[None]]) -> None:
        self._size, self._decide = size, decide
        self._here: Counter[int] = Counter()
        self._left: dict[int, float] = {}
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._deciding: asyncio.Task[None] | None = None

    @property
    def failed(self) -> bool:
        """Whether `decide` raised; whoever comes later needs another gate."""
        return self._opened.done() and self._opened.exception() is not None

    @property
    def deciding(self) -> bool:
        return self._deciding is not None

    def seen(self, rank: int, seconds: float) -> bool:
        """Whether a rank waits here or did not long ago. Ranks give up one by one: none is missing for that."""
        return rank in self._here or time.monotonic() - self._left.get(rank, -1e9) < seconds

    async def wait(self, rank: int, timeout: float) -> bool:
        """Whether the gate opened in time. Raises what `decide` raised, to everyone who waits."""
        self._here[rank] += 1  # a rank that lost its connection and asks again is here twice for a while
        try:
            if len(self._here) == self._size and self._deciding is None:
                self._deciding = asyncio.get_running_loop().create_task(self._run())
            await asyncio.wait({self._opened}, timeout=timeout)
            return self._opened.done() and self._opened.result() is None
        finally:
            self._left[rank] = time.monotonic()
            self._here[rank] -= 1
            if not self._here[rank]:
                del self._here[rank]

    async def _run(self) -> None:
        try:
            await self._decide()
        except Exception as error:
            self._opened.set_exception(error)
            self._opened.exception()  # it may be that nobody waits any more
        else:
            self._opened.set_result(None)
