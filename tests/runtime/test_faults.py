"""No silent hangs: whatever happens to one rank, the others stop soon, and the last line says who, what and where."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from halocline.runtime import PeerLost, RankFailed, run_local
from halocline.runtime.launch import post_mortem
from halocline.runtime.logbook import Logbook, note_failure, read
from halocline.runtime.lost import Loss
from halocline.runtime.world import World

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]
import check_faults  # noqa: E402

ROLE = "replica 0 pipe 0 stage 2 tile 0 lane 0 tensor 0"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("kill", f"rank 2 ({ROLE}) was killed by SIGKILL in forward p0 s2 m1 of step 2"),
        ("raise", f"rank 2 ({ROLE}) failed: ArithmeticError: the moon is full in forward p0 s2 m1 of step 2"),
        ("exit", f"rank 2 ({ROLE}) ended with exit code 7 in forward p0 s2 m1 of step 2"),
    ],
)
def test_the_launcher_names_the_rank_its_role_and_its_instruction(kind: str, told: str, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    began = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        run_local(4, check_faults.run, kind, directory=tmp_path)
    assert str(caught.value) == told
    joined = max((tmp_path / f"rank{r}.log").stat().st_ctime for r in range(4))
    assert time.monotonic() - began < 90 and joined > 0


def test_a_hanging_rank_is_named_by_who_waited_for_it(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(RankFailed) as caught:
        run_local(4, check_faults.run, "hang", 4.0)
    said = str(caught.value)
    assert "failed: PeerLost: rank " in said and "nothing came for 4 s" in said, said
    assert f"from rank 2: nothing came for 4 s; rank 2 ({ROLE}) is in forward p0 s2 m1 of step 2" in said, said


@pytest.mark.parametrize("kind", ["kill", "raise"])
def test_without_a_launcher_that_ends_them_the_others_stop_within_5_s(kind: str) -> None:
    """Like srun without --kill-on-bad-exit: nobody ends the survivors but their own watch."""
    processes = []
    for rank in range(4):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "PMI"))}
        env |= {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "SLURM_LOCALID": str(rank), "OMP_NUM_THREADS": "1"}
        env |= {"MASTER_PORT": str(20000 + os.getpid() % 9000)}
        command = [sys.executable, "-W", "error", str(HERE / "check_faults.py"), kind]
        processes.append(subprocess.Popen(command, env=env, stdout=-1, stderr=-1, text=True))
    try:
        processes[2].wait(120)
        dead = time.monotonic()
        for process in processes:
            process.wait(20)
        assert time.monotonic() - dead < 5
        for rank in (0, 1, 3):
            out, err = processes[rank].communicate()
            assert f"joined {rank} 4 Slurm gloo" in out
            assert processes[rank].returncode == 1, err
            what = "died" if kind == "kill" else "failed: ArithmeticError: the moon is full"
            assert f"rank 2 ({ROLE}) {what} in " in err and "of step 2" in err, err
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_logbook_survives_its_process(tmp_path: Path) -> None:
    book = Logbook(tmp_path, 3, 77)
    book.begin("stage 1", ["forward", "backward"])
    book.note(5, 2)
    assert read(tmp_path, 3) == (Loss(3, "stage 1", "backward", 5), None, 77)
    note_failure(tmp_path, 3, "failed: so it is")
    assert str(read(tmp_path, 3)[0]) == "rank 3 (stage 1) failed: so it is in backward of step 5"
    assert read(tmp_path, 4) is None


def test_a_long_failure_still_fits_the_logbook(tmp_path: Path) -> None:
    book = Logbook(tmp_path, 0, 1)
    book.begin("role", ["forward"])
    book.note(1, 1)
    book.fail("failed: " + "x" * 10_000)
    found, own, _ = read(tmp_path, 0)
    assert own is True and found.instruction == "forward" and found.reason.endswith("xxx")


def test_the_cause_is_the_rank_that_failed_by_itself(tmp_path: Path) -> None:
    for rank in range(3):
        Logbook(tmp_path, rank, rank).fail("failed: own" if rank == 1 else "failed: other", own=rank == 1)
    assert post_mortem(tmp_path, 3, {0: 1, 1: 1, 2: 1}).rank == 1
    assert str(post_mortem(tmp_path, 3, {0: 1, 2: -9})) == "rank 2 was killed by SIGKILL"


def test_a_world_of_one_needs_no_transport() -> None:
    world = World.join()
    assert str(world) == "1 process on cpu, deadline 600 s"
    assert issubclass(PeerLost, RuntimeError)
    world.close()
