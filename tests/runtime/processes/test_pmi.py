"""Words through MPICH's launcher: the simulated one, and the real one where it is installed (tests of `meeting`)."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

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


def test_another_protocol_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"    22something else;\n")
        with pytest.raises(OSError, match="answered"):
            pmi.share(theirs.fileno(), WORD, 60.0)
        ours.close()
        with pytest.raises(OSError):
            pmi.share(theirs.fileno(), WORD, 60.0)
