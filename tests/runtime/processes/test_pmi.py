"""Words through MPICH's launcher: the simulated one, and the real one where it is installed (tests of `meeting`)."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from halocline.runtime.processes import pmi
from harness.simulated_hydra import simulated_hydra

WORD = '{"addresses":["10.0.0.1","node 1"],"port":29500}'


def test_all_ranks_get_what_rank_0_said_and_later_what_it_said_last() -> None:
    with simulated_hydra(3) as launcher, ThreadPoolExecutor(3) as threads:
        for word in (WORD, "again", "once more"):
            passed = [word, None, None]
            assert list(threads.map(pmi.share, launcher.descriptors, passed, [60.0] * 3)) == [word] * 3


def test_a_rank_that_does_not_come_is_not_waited_for_forever() -> None:
    with simulated_hydra(2) as launcher, pytest.raises(TimeoutError):
        pmi.share(launcher.descriptors[0], WORD, 0.2)


def test_a_descriptor_that_is_not_the_launchers_is_refused() -> None:
    read, write = os.pipe()
    with pytest.raises(OSError, match=f"descriptor {write} is not the launcher's"):
        pmi.share(write, WORD, 1.0)
    os.close(read)
    os.close(write)
    with pytest.raises(OSError):
        pmi.share(write, WORD, 1.0)


def test_the_descriptor_is_left_as_it_was() -> None:
    """MPI and the next program wait at the same one."""
    with simulated_hydra(2) as launcher, ThreadPoolExecutor(2) as threads:
        list(threads.map(pmi.share, launcher.descriptors, [WORD, None], [60.0] * 2))
        assert all(map(os.get_blocking, launcher.descriptors))
        with pytest.raises(TimeoutError):
            pmi.share(launcher.descriptors[0], WORD, 0.1)
        assert os.get_blocking(launcher.descriptors[0])


def test_a_launcher_that_takes_no_word_is_not_asked_forever() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        shared = threads.submit(pmi.share, theirs.fileno(), WORD, 0.5)
        ours.settimeout(0.1)
        end = time.monotonic() + 60
        while not shared.done() and time.monotonic() < end:
            with suppress(TimeoutError):
                asked = ours.recv(4096)
                ours.sendall(b"cmd=my_kvsname kvsname=a\n" if b"kvsname\n" in asked else b"cmd=put_result rc=-1\n")
        if not shared.done():
            ours.shutdown(socket.SHUT_RDWR)
        with pytest.raises(TimeoutError):
            shared.result(60)


@pytest.mark.parametrize("answer", [b"cmd=my_kvsname\n", b"cmd=\xff\n"])
def test_an_answer_without_what_was_asked_for_is_refused(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(answer)
        with pytest.raises(OSError, match="answered"):
            pmi.share(theirs.fileno(), WORD, 60.0)


def test_another_protocol_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"    22something else;\n")
        with pytest.raises(OSError, match="answered"):
            pmi.share(theirs.fileno(), WORD, 60.0)
        ours.close()
        with pytest.raises(OSError):
            pmi.share(theirs.fileno(), WORD, 60.0)
