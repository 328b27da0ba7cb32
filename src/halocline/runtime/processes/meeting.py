"""Meeting: how the processes come to share one store, which rank 0 keeps.

Where its address and port are known beforehand they are used. Else rank 0 takes a free port and tells: through MPICH's
launcher, or in a file of a directory that all share, named after the job. The file may be an earlier job's, so the
others believe it only if the store they find answers with the file's own random word.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from halocline.runtime.processes import pmi
from halocline.runtime.processes.environment import WAYS_OUT, LauncherRank, command
from halocline.runtime.processes.lost import PeerLost
from halocline.runtime.processes.nodes import own_addresses

_WORD = "halocline/meeting"
_JOB = "halocline/job"
_PROBE = 3.0
"""Seconds that one address of rank 0 has to answer."""
SILENT = 10.0
"""Seconds after which a rank says what it waits for."""

_T = TypeVar("_T")


@dataclass
class Meeting:
    """What the processes share."""

    store: Any
    address: str
    """Of rank 0, as this process reaches it."""
    file: Path | None = None
    """In which rank 0 told where it is."""

    def over(self) -> None:
        """All have come: whoever reads the file now is of another job."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Told:
    """What rank 0 tells."""

    word: str
    """Random, also in the store: whoever finds it there has found this job's."""
    addresses: list[str]
    port: int


def meet(place: LauncherRank, deadline: float) -> Meeting:
    """The store that all processes share, within `deadline` seconds."""
    if place.address and place.port:
        return Meeting(_known(place, deadline), _resolved(place.address))
    return _keep(place, deadline) if place.rank == 0 else _find(place, deadline)


def _known(place: LauncherRank, deadline: float) -> Any:
    """The store whose address and port all were told."""
    host = f"[{place.address}]" if ":" in place.address and "[" not in place.address else place.address
    where = f"{host}:{place.port}"
    url = f"tcp://{where}?rank={place.rank}&world_size={place.size}"
    try:
        rendezvous = dist.rendezvous(url, timeout=timedelta(seconds=deadline))
        with _told_late(place, f"all processes at the store of rank 0, {where}"):
            store, _, _ = _within(deadline + _PROBE, partial(next, rendezvous))
        if place.job and not place.store_by_launcher:
            if place.rank == 0:
                store.set(_JOB, place.job)
            if (other := store.get(_JOB).decode()) != place.job:
                raise PeerLost(
                    f"rank {place.rank} of {place.size} of job {place.job} found the store of job {other} at {where}: "
                    f"set MASTER_PORT to another port for one of them"
                )
    except (RuntimeError, OSError) as error:
        if isinstance(error, PeerLost):
            raise
        if place.rank == 0 and "EADDRINUSE" in str(error):
            raise _taken(place) from error
        if (joined := re.search(r"(\d+)/\d+ clients joined", str(error))) is not None:
            raise PeerLost(
                f"rank {place.rank} waited {deadline:g} s for all {place.size} processes and {joined[1]} came to the "
                f"store of rank 0, {where}: start them with {command(place.launcher, place.size)}"
            ) from error
        raise PeerLost(
            f"rank {place.rank} of {place.size} found no store at {where} in {deadline:g} s: rank 0 has not started, "
            f"or another address is right (set MASTER_ADDR and MASTER_PORT); {_line(error)}"
        ) from error
    return store


def _keep(place: LauncherRank, deadline: float) -> Meeting:
    """On rank 0: a store at a free port, told to the others."""
    seconds = timedelta(seconds=deadline)
    try:
        store = dist.TCPStore("127.0.0.1", place.port, place.size, True, seconds, wait_for_workers=False)
    except RuntimeError as error:
        raise (_taken(place) if "EADDRINUSE" in str(error) else error) from error
    addresses = [place.address] if place.address else [*own_addresses()[:8], socket.gethostname()]
    told = _Told(uuid.uuid4().hex, addresses, store.port)
    store.set(_WORD, told.word)
    words = json.dumps(vars(told), separators=(",", ":"))
    if place.pmi is not None:
        _by_launcher(place, words, deadline)
        return Meeting(store, addresses[0])
    file = _file(place)
    try:
        new = file.with_name(f"{file.name}.{told.word}")
        new.write_text(words)
        os.replace(new, file)
    except OSError as error:
        raise ValueError(f"rank 0 cannot write where it is to {file} ({error.strerror}): {WAYS_OUT}") from error
    return Meeting(store, addresses[0], file)


def _find(place: LauncherRank, deadline: float) -> Meeting:
    """On the others: the store of which rank 0 tells."""
    began, said, read = time.monotonic(), False, place.pmi is None
    told = _read(_file(place)) if read else _parsed(_by_launcher(place, None, deadline))
    while True:
        found = _reached(place, told, deadline)
        if found is not None:
            return found
        if read:
            where = f"{_file(place)}, which rank 0 writes"
            where += f" (its store of {told.addresses}, port {told.port}, does not answer)" if told else ""
        else:
            where = f"the store of rank 0 at {told.addresses}, port {told.port}" if told else "a word from rank 0"
        waited = time.monotonic() - began
        if waited > deadline:
            raise PeerLost(f"rank {place.rank} of {place.size} waited {deadline:g} s for {where}: {WAYS_OUT}")
        if waited > SILENT and not said:
            said = True
            say(place, f"{where}; {WAYS_OUT}")
        time.sleep(0.1)
        told = _read(_file(place)) if read else told


def _reached(place: LauncherRank, told: _Told | None, deadline: float) -> Meeting | None:
    """The store, by the first address at which it answers with the right word."""

    def asked(address: str, port: int) -> tuple[Any, str]:
        store = dist.TCPStore(address, port, place.size, False, timedelta(seconds=_PROBE))
        return store, store.get(_WORD).decode() if store.check([_WORD]) else ""

    for address in told.addresses if told is not None else ():
        assert told is not None
        with suppress(RuntimeError, OSError):
            socket.create_connection((address, told.port), _PROBE).close()
            store, word = _within(_PROBE, partial(asked, address, told.port))
            if word == told.word:
                store.set_timeout(timedelta(seconds=deadline))
                return Meeting(store, address)
    return None


def _within(seconds: float, act: Callable[[], _T]) -> _T:
    """What `act` returns. Torch waits forever for a program that takes the connection and is no store."""
    ends: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ends.put((act(), None))
        except BaseException as error:
            ends.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = ends.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError("nothing answers there, or no store") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def looked_after(place: LauncherRank) -> bool:
    """Whether a launcher of torch's started the processes: it notices by itself if one is not there."""
    return place.store_by_launcher or place.run_directory is not None


def say(place: LauncherRank, what: str) -> None:
    """What this rank waits for, to people."""
    print(f"rank {place.rank} of {place.size} waits for {what}", file=sys.stderr, flush=True)


@contextmanager
def _told_late(place: LauncherRank, what: str) -> Iterator[None]:
    """Says what is waited for inside, if that takes long."""
    timer = threading.Timer(SILENT, say, (place, what))
    timer.daemon = True
    if not looked_after(place):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _resolved(name: str) -> str:
    """Rank 0's own name may lead to its loopback, on itself alone: what others are told by it is not a name."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


def _by_launcher(place: LauncherRank, words: str | None, deadline: float) -> str:
    assert place.pmi is not None
    try:
        return pmi.share(place.pmi, words, deadline)
    except OSError as error:
        late = isinstance(error, TimeoutError)
        story = f"not all {place.size} processes came in {deadline:g} s" if late else str(error)
        raise PeerLost(
            f"rank {place.rank} of {place.size} cannot be told where rank 0 is by {place.launcher}'s launcher: "
            f"{story} (PMI_FD={place.pmi}); {WAYS_OUT}"
        ) from error


def _file(place: LauncherRank) -> Path:
    assert place.rendezvous is not None
    return place.rendezvous / f".halocline-{hashlib.sha256(place.job.encode()).hexdigest()[:16]}"


def _read(file: Path) -> _Told | None:
    try:
        return _parsed(file.read_text())
    except (OSError, UnicodeDecodeError):
        return None


def _parsed(words: str) -> _Told | None:
    try:
        told = _Told(**json.loads(words))
    except (ValueError, TypeError, RecursionError):
        return None
    known = isinstance(told.word, str) and told.word and type(told.port) is int and 0 < told.port < 65536
    listed = isinstance(told.addresses, list) and all(isinstance(address, str) for address in told.addresses)
    return told if known and listed else None


def _taken(place: LauncherRank) -> ValueError:
    return ValueError(f"port {place.port} of rank 0's machine is taken: set MASTER_PORT to a free one for all ranks")


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:500]
