"""MPICH's launcher as its processes see it, simulated: a table of words and a barrier, at one socket per rank. What it
answers is what Hydra 4.0 and 5.0 were seen to answer."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SimulatedHydra:
    """Answers the ranks of one job; `descriptors` are what they would inherit as PMI_FD."""

    def __init__(self, size: int) -> None:
        self._table: dict[str, str] = {}
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(size)
        self._ours, self._theirs = zip(*(socket.socketpair() for _ in range(size)), strict=True)
        self.descriptors = [end.fileno() for end in self._theirs]
        for end in self._ours:
            threading.Thread(target=self._answer, args=(end,), daemon=True).start()

    def _answer(self, end: socket.socket) -> None:
        with end.makefile("rw", encoding="ascii", newline="\n") as lines:
            for line in lines:
                asked = dict(re.findall(r"(\w+)=(\S*)", line))
                try:
                    lines.write(self._said(asked) + "\n")
                    lines.flush()
                except (threading.BrokenBarrierError, OSError):
                    return

    def _said(self, asked: dict[str, str]) -> str:
        if asked["cmd"] == "get_my_kvsname":
            return "cmd=my_kvsname kvsname=kvs_7281_0_626447532_node1"
        if asked["cmd"] == "barrier_in":
            self._barrier.wait()
            return "cmd=barrier_out"
        with self._lock:
            if asked["cmd"] == "get":
                value = self._table.get(asked["key"])
                found = value is not None
                return (
                    f"cmd=get_result rc=0 msg=success value={value}"
                    if found
                    else "cmd=get_result rc=-1 msg=key_not_found"
                )
            assert asked["cmd"] == "put"
            if asked["key"] in self._table:
                return "cmd=put_result rc=-1 msg=duplicate_key"
            self._table[asked["key"]] = asked["value"]
            return "cmd=put_result rc=0 msg=success"

    def close(self) -> None:
        self._barrier.abort()
        for end in (*self._ours, *self._theirs):
            end.close()


@contextmanager
def simulated_hydra(size: int) -> Iterator[SimulatedHydra]:
    launcher = SimulatedHydra(size)
    try:
        yield launcher
    finally:
        launcher.close()
