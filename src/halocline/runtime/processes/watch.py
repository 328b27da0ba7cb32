"""The watch: a thread on each rank that notices when another rank is gone, tells everybody, and ends the wait.

Knows ranks and their store; nothing of messages. Every quarter of a second a rank leaves a beat in the store (where it
runs and what it is doing), looks whether a loss was announced, and looks after the next rank: on the same machine by
its process, elsewhere by its beats. Who learns of a loss gives its own work a moment to fail by itself, and then ends
the process, for a wait inside a communication library cannot be interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from halocline.runtime.processes.logbook import PEER, TOLD, Logbook
from halocline.runtime.processes.lost import LostRank
from halocline.runtime.processes.nodes import machine

INTERVAL = 0.25
GRACE = 1.0
"""Seconds that a rank has to fail by itself after a loss is known."""
SILENCE = 15.0
"""Seconds without a beat after which a rank on another machine is given up."""

_LOST = "halocline/lost"
_BEAT = "halocline/beat/{}"
_LEFT = "halocline/left/{}"


class Watch:
    """Looks after the other ranks until `leave`."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: Any,
        logbook: Logbook,
        deadline: float,
        host_of_store: int | None = 0,
        one_machine: bool = True,
    ) -> None:
        self.rank, self.size, self.logbook, self.deadline = rank, size, logbook, deadline
        self._machine = machine()
        self._news = 2 * INTERVAL + GRACE + (0.0 if one_machine else SILENCE)
        """Seconds until the end of any rank is known."""
        self.store = store.clone()  # a connection of its own: the main one may be blocked in a wait
        self.host_of_store = host_of_store
        """The rank that keeps the store; None if the launcher does."""
        self.loss: LostRank | None = None
        self._known = threading.Event()
        self._over = threading.Event()
        self._ended = False
        self._raised = False
        """Whether this rank's own work has failed already and will end it."""
        self._expected: deque[tuple[Any, float, str]] = deque()
        self._beats: dict[int, tuple[int, float]] = {}
        self._count = 0
        self._beat()
        self._thread = threading.Thread(target=self._run, name="halocline-watch", daemon=True)
        self._thread.start()

    # -- for this rank's own work --------------------------------------------------------------------------------

    def expect(self, handle: Any, story: str) -> None:
        """Something that only the GPU waits for: it must be done before the deadline."""
        self._expected.append((handle, time.monotonic() + self.deadline, story))

    def cause(self) -> str:
        """Why a wait failed, if a loss explains it; gives the news the time it takes."""
        self._known.wait(self._news)
        return str(self.loss) if self.loss is not None and self.loss.rank != self.rank else ""

    def report(self, detail: str) -> None:
        """Tell everybody that this rank fails."""
        self._raised = True
        if self.loss is None:
            self._announce(self.logbook.loss("failed", detail))

    def leave(self) -> None:
        """This rank is done. Whoever keeps the store stays until the others know."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join(2 * INTERVAL)
        try:
            self.store.set(_LEFT.format(self.rank), "left")
            left = self.store.add("halocline/left_count", 1)
            end = time.monotonic() + 3 * INTERVAL
            while self.host_of_store == self.rank and left < self.size and time.monotonic() < end:
                time.sleep(INTERVAL / 10)
                left = self.store.add("halocline/left_count", 0)
        except RuntimeError:
            return  # the store is gone, and with it whoever would want to know

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.wait(INTERVAL):
            try:
                self._beat()
                self._look()
            except RuntimeError as error:  # the store does not answer
                if self._over.is_set() or self._ended:
                    return
                keeper = self.host_of_store
                reason = "ended: its store does not answer"
                self.loss = (
                    LostRank(keeper, reason=reason) if keeper is not None else LostRank(self.rank, reason=str(error))
                )
            if self.loss is None:
                self._overdue()
            if self.loss is not None:
                self._known.set()
                self._stop(self.loss)
                return

    def _beat(self) -> None:
        self._count += 1
        state = self.logbook.loss("died")
        beat = {"machine": self._machine, "pid": os.getpid(), "count": self._count, "state": state.to_json()}
        self.store.set(_BEAT.format(self.rank), json.dumps(beat))

    def _look(self) -> None:
        if self.store.check([_LOST]):
            self.loss = LostRank.from_json(self.store.get(_LOST))
            return
        keeper = self.host_of_store
        if keeper is not None and not self._ended and self.store.check([_LEFT.format(keeper)]):
            self._ended = True  # from now on the store may go at any time
        for offset in range(1, self.size):
            other = (self.rank + offset) % self.size
            if self.store.check([_LEFT.format(other)]):
                continue
            if (loss := self._missing(other)) is not None:
                self._announce(loss)
            return

    def _missing(self, other: int) -> LostRank | None:
        if not self.store.check([_BEAT.format(other)]):
            return None
        beat = json.loads(self.store.get(_BEAT.format(other)))
        now = time.monotonic()
        if beat["machine"] == self._machine:
            if _alive(beat["pid"]):
                return None
        else:
            count, since = self._beats.get(other, (-1, now))
            self._beats[other] = (beat["count"], now if beat["count"] != count else since)
            if now - self._beats[other][1] < SILENCE:
                return None
        if self.store.check([_LEFT.format(other)]):
            return None
        return self.logbook.neighbour(other) or LostRank.from_json(beat["state"])

    def _overdue(self) -> None:
        while self._expected and self._expected[0][0].is_completed():
            self._expected.popleft()
        if self._expected and time.monotonic() > self._expected[0][1]:
            story = self._expected[0][2]
            detail = f"{story}: nothing came for {self.deadline:g} s"
            self.logbook.fail(PEER, detail)
            self._announce(self.logbook.loss("failed", detail))

    def _announce(self, loss: LostRank) -> None:
        """The first announcement stands."""
        try:
            stands = self.store.compare_set(_LOST, "", loss.to_json())
            self.loss = LostRank.from_json(stands)
        except RuntimeError:
            self.loss = loss
        self._known.set()

    def _stop(self, loss: LostRank) -> None:
        if self._over.wait(GRACE) or (self._raised and loss.rank == self.rank):
            return
        line = f"rank {self.rank} stops: {loss}"
        self.logbook.fail(TOLD, line)
        print(line, file=sys.stderr, flush=True)
        os._exit(1)


def _alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that ended but was not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return not Path("/proc").is_dir()
    return state not in "ZX"
