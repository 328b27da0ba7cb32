"""A word from rank 0 to all ranks through MPICH's launcher, which every process reaches at a descriptor it inherits.

The launcher (Hydra, also Intel MPI's and MVAPICH2's mpiexec) answers lines of version 1 of its protocol:

    cmd=get_my_kvsname                              the name of this job's table
    cmd=put kvsname=N key=K value=V                 a word into the table, once per key
    cmd=barrier_in                                  answered when all ranks have asked; then all see what was put
    cmd=get kvsname=N key=K                         a word out of the table

Nothing is begun or ended here, so a program may still start MPI itself. Knows nothing of addresses.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

_KEY = "halocline{}"


def share(descriptor: int, word: str | None, deadline: float) -> str:
    """What rank 0 passed as `word`; the others pass None. Every rank calls this. OSError if that fails."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError(f"descriptor {descriptor} is not the launcher's")
    with socket.socket(fileno=os.dup(descriptor)) as launcher, _blocking_again(launcher):
        end = time.monotonic() + deadline
        table = _asked(launcher, "get_my_kvsname", end, "kvsname")["kvsname"]
        meeting = 0
        if word is not None:
            value = word.encode().hex()  # neither blanks nor equals signs
            while (
                _asked(launcher, f"put kvsname={table} key={_KEY.format(meeting)} value={value}", end, "rc")["rc"]
                != "0"
            ):
                meeting += 1  # that many times these ranks have met before
        _asked(launcher, "barrier_in", end)
        found = ""
        while (answer := _asked(launcher, f"get kvsname={table} key={_KEY.format(meeting)}", end, "rc"))["rc"] == "0":
            found, meeting = answer.get("value", ""), meeting + 1
    try:
        return bytes.fromhex(found).decode()
    except ValueError:
        raise OSError(f"the launcher answered {found[:60]!r} where rank 0's word belongs") from None


@contextmanager
def _blocking_again(launcher: socket.socket) -> Iterator[None]:
    """A deadline makes the descriptor itself return at once, for MPI and later programs too: it is given back as it
    was."""
    try:
        yield
    finally:
        launcher.settimeout(None)


def _asked(launcher: socket.socket, question: str, end: float, wanted: str = "cmd") -> dict[str, str]:
    """The fields of the one line with which the launcher answers, `wanted` among them."""
    if time.monotonic() > end:
        raise TimeoutError("the launcher answers, and never as it should")
    launcher.sendall(f"cmd={question}\n".encode())
    line = b""
    while not line.endswith(b"\n"):
        # A byte at a time: what follows the line is for whoever asks next.
        launcher.settimeout(max(0.001, end - time.monotonic()))
        byte = launcher.recv(1)
        if not byte:
            raise OSError(f"the launcher closed its connection after {question.split()[0]}")
        line += byte
    fields = dict(re.findall(r"(\w+)=(\S*)", line.decode("latin-1")))
    if not {"cmd", wanted} <= fields.keys():
        raise OSError(f"the launcher answered {line!r} to {question.split()[0]}")
    return fields
