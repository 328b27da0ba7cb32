"""No silent hangs: whatever happens to one rank, the others stop soon, and the last line says who, what and where."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from halocline.runtime import PeerLost, RankFailed, run_local
from halocline.runtime.processes.launch import post_mortem
from halocline.runtime.processes.logbook import Logbook, note_failure, read
from halocline.runtime.processes.lost import LostRank
from halocline.runtime.processes.world import World
from halocline.schedule.instruction import BACKWARD, FORWARD, Instruction
from harness.checks import FOLDER
from harness.checks import faults as check_faults
from harness.processes import copy_what_is_started, program

ROLE = "replica 0 pipe 0 stage 1 tile 0 lane 0 tensor 0"
ROW = (Instruction(FORWARD, 0, 1, 0), Instruction(BACKWARD, 0, 1, 0))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        # Where the launcher looks up late, it sees a survivor leave first, and has what that one says.
        ("kill", "(was killed by SIGKILL in {where}|is late in {where}: PeerLost: .* died in {where})"),
        ("raise", "failed in {where}: ArithmeticError: the moon is full"),
    ],
)
def test_the_launcher_names_the_rank_its_role_and_its_instruction(
    kind: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_what_is_started(monkeypatch)
    with pytest.raises(RankFailed) as caught:
        run_local(3, check_faults.run, kind)
    story = told.format(where="forward p0 s1 m1 of step 2")
    assert re.match(re.escape(f"rank 1 ({ROLE}) ") + story, str(caught.value)), caught.value


def test_a_hanging_rank_is_named_and_so_is_who_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_what_is_started(monkeypatch)
    with pytest.raises(RankFailed) as caught:
        run_local(3, check_faults.run, "hang", 4.0)
    said = str(caught.value)
    assert said.startswith(f"rank 1 ({ROLE}) is late in forward p0 s1 m1 of step 2: PeerLost: rank "), said
    assert "waits in" in said and ": nothing came for 4 s; rank " in said, said


def noted(book: Logbook, step: int, instruction: int) -> None:
    """As the events of a step tell it."""
    book.step_begins(step, None)
    for done in ROW[:instruction]:
        book.begin(done, None)


def _free_port() -> int:
    """Below those that connections are given, of which another test could be given this one before it is used."""
    for port in range(20000 + os.getpid() % 9000, 30000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return port
    raise AssertionError("no port is free")


@pytest.mark.parametrize("kind", ["kill", "raise"])
def test_without_a_launcher_that_ends_them_the_others_stop_by_themselves(kind: str, tmp_path: Path) -> None:
    """Like srun without --kill-on-bad-exit: nobody ends the survivors but their own watch, long before a deadline."""
    port = _free_port()

    def slurm(rank: int) -> dict[str, str]:
        place = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "3", "SLURM_LOCALID": str(rank)}
        return {**place, "TMPDIR": str(tmp_path), "MASTER_PORT": str(port)}

    ended = program(FOLDER / "faults.py", kind, processes=3, told=slurm, directory=tmp_path)
    assert ended.codes == (1, -signal.SIGKILL if kind == "kill" else 1, 1), ended.err
    assert sorted(re.findall(r"joined (\d) 3 Slurm gloo", ended.out)) == ["0", "1", "2"]
    what, why = ("died", "") if kind == "kill" else ("failed", ": ArithmeticError: the moon is full")
    story = re.escape(f"rank 1 ({ROLE}) {what} in forward p0 s1 m1 of step 2{why}")
    # Its own wait fails and says so, or on a busy machine its watch ends it first.
    assert re.search(f"(PeerLost: rank 0 waits .*|rank 0 stops: ){story}", ended.err), ended.err
    # By then rank 0, which kept the store, may have left, too.
    said = f"(PeerLost: rank 2 waits .* from rank 1: |rank 2 stops: )({story}|rank 0 ended)"
    assert re.search(said, ended.err), ended.err


def test_a_logbook_survives_its_process(tmp_path: Path) -> None:
    book = Logbook(tmp_path, 3, 77)
    book.introduce("stage 1", ROW)
    noted(book, 5, 2)
    book.waits_for(2)
    assert read(tmp_path, 3) == (LostRank(3, "stage 1", "backward p0 s1 m0", 5, waits_for=2), "")
    note_failure(tmp_path, 3, "so it is")
    assert str(read(tmp_path, 3)[0]) == "rank 3 (stage 1) failed in backward p0 s1 m0 of step 5: so it is"
    assert read(tmp_path, 4) == (None, "")


def test_a_failure_before_the_logbook_was_made(tmp_path: Path) -> None:
    note_failure(tmp_path, 1, "ImportError: no")
    assert str(post_mortem(tmp_path, 2, {1: 1})) == "rank 1 failed: ImportError: no"


def test_a_long_failure_still_fits_the_logbook(tmp_path: Path) -> None:
    book = Logbook(tmp_path, 0, 1)
    book.introduce("role", ROW)
    noted(book, 1, 1)
    book.fail("own", "x" * 10_000)
    found, why = read(tmp_path, 0)
    assert found is not None
    assert why == "own" and found.instruction == "forward p0 s1 m0" and found.detail == "x" * 10_000


def test_the_cause_is_the_rank_that_failed_by_itself(tmp_path: Path) -> None:
    for rank in range(3):
        Logbook(tmp_path, rank, rank).fail("own" if rank == 1 else "peer", f"error {rank}")
    assert str(post_mortem(tmp_path, 3, {0: 1, 1: 1, 2: 1})) == "rank 1 failed: error 1"
    assert str(post_mortem(tmp_path, 3, {0: 1, 2: -9})) == "rank 2 was killed by SIGKILL: error 2"


def test_a_rank_that_left_without_a_word(tmp_path: Path) -> None:
    book = Logbook(tmp_path, 1, 1)
    book.introduce("stage 1", ROW)
    noted(book, 2, 1)
    Logbook(tmp_path, 0, 0).fail("peer", "error 0")
    told = "rank 1 (stage 1) ended with exit code 7 in forward p0 s1 m0 of step 2"
    assert str(post_mortem(tmp_path, 2, {0: 1, 1: 7})) == told


def test_a_chain_of_waits_ends_at_the_rank_that_is_late(tmp_path: Path) -> None:
    books = [Logbook(tmp_path, rank, rank) for rank in range(3)]
    for rank, book in enumerate(books):
        book.introduce(f"stage {rank}", ROW)
        noted(book, 4, 2 - (rank == 2))
    books[0].waits_for(1)
    books[1].waits_for(2)
    assert books[0].waited_for(1) == (
        "; rank 1 (stage 1) is in backward p0 s1 m0 of step 4 and waits for rank 2"
        "; rank 2 (stage 2) is in forward p0 s1 m0 of step 4"
    )
    books[0].fail("peer", "PeerLost: nothing came")
    late = "rank 2 (stage 2) is late in forward p0 s1 m0 of step 4: PeerLost: nothing came"
    assert str(post_mortem(tmp_path, 3, {0: 1})) == late


def test_a_world_of_one_needs_no_transport() -> None:
    world = World.join()
    assert str(world) == "1 process on cpu, deadline 600 s"
    assert issubclass(PeerLost, RuntimeError)
    world.close()


def test_a_rank_aborted_while_it_gave_up_a_peer_is_not_the_cause(tmp_path: Path) -> None:
    """Torch may abort a process that leaves with messages under way; one that said nothing before is the cause."""
    for rank in range(2):
        Logbook(tmp_path, rank, 0).fail("peer", f"error {rank}")
    assert "killed by SIGABRT" not in str(post_mortem(tmp_path, 2, {0: 1, 1: -6}))
    Logbook(tmp_path, 2, 0).introduce("a role", [])
    assert str(post_mortem(tmp_path, 3, {0: 1, 2: -6})).endswith("was killed by SIGABRT")
