"""Launchers: their environments, and real processes started by torchrun, mpirun and by ourselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from halocline.runtime import PeerLost, run_local
from halocline.runtime.processes import launch
from halocline.runtime.processes.environment import LauncherRank, command, detect, first_node
from halocline.runtime.processes.launch import _neighbours
from halocline.runtime.processes.meeting import Meeting
from harness.checks import FOLDER
from harness.checks import faults as check_faults

ONE_NODE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


@pytest.mark.parametrize(
    ("launcher", "names"),
    [
        ("torchrun", ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")),
        (
            "Open MPI",
            (
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ),
        ),
        (
            "MVAPICH2",
            ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ),
        ("MPICH", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")),
    ],
)
def test_each_launcher_is_understood(launcher: str, names: tuple[str, ...]) -> None:
    place = detect({**dict(zip(names, ("5", "8", "1", "4"))), **ONE_NODE})
    assert place is not None
    assert (place.launcher, place.rank, place.size, place.local_rank, place.local_size) == (launcher, 5, 8, 1, 4)
    assert (place.address, place.port) == ("127.0.0.1", 29999)


def test_slurm_derives_where_to_meet() -> None:
    slurm = {
        "SLURM_PROCID": "9",
        "SLURM_NTASKS": "16",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
    }
    place = detect({**slurm, "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"})
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size, place.address) == (9, 16, 1, 8, "gpu03")
    assert place.port == detect({**slurm, "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_PROCID": "0"}).port  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("nodes", "first"), [("gpu[03-05,9],big1", "gpu03"), ("a1,b2", "a1"), ("n[7,9]-ib", "n7-ib"), ("solo", "solo")]
)
def test_the_first_machine_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_no_launcher_is_no_place() -> None:
    assert detect({"PATH": "/bin"}) is None


def test_a_contradiction_is_refused_with_both_values() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", **ONE_NODE}
    with pytest.raises(ValueError, match=r"torchrun says rank 1 of 4 .* Open MPI says rank 0 of 2 .* unset"):
        detect(env)
    with pytest.raises(ValueError, match=r"torchrun says rank 1 of 4 .* Slurm says rank 0 of 2"):
        detect({"RANK": "1", "WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", **ONE_NODE})


def test_launchers_that_agree_are_fine() -> None:
    env = {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "PMI_RANK": "1", "PMI_SIZE": "2", **ONE_NODE}
    assert detect(env).launcher == "MVAPICH2"  # type: ignore[union-attr]


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967291"}, {"SLURM_STEP_ID": "4294967290"}], ids=str)
def test_a_batch_script_or_a_shell_of_salloc_is_none_of_sruns_tasks(step: dict[str, str]) -> None:
    """Slurm tells them of the tasks that srun may start, as if they were the first of them: nobody else would come."""
    env = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NNODES": "1", **step}
    with pytest.raises(ValueError, match=r"SLURM_NTASKS=8, .* start it with srun -n 8, or unset SLURM_PROCID"):
        detect({**env, "SLURM_NTASKS": "8"})
    assert detect({**env, "SLURM_NTASKS": "1"}) is None
    inside = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert detect({**env, "SLURM_NTASKS": "8", **inside}).launcher == "Open MPI"  # type: ignore[union-attr]


def test_torchrun_inside_a_slurm_job_is_no_contradiction() -> None:
    env = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0", **ONE_NODE}
    assert detect({**env, "SLURM_NTASKS": "8"}).rank == 5  # type: ignore[union-attr]  # from a batch script
    agents = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2"}
    assert detect({**env, **agents}).rank == 5  # type: ignore[union-attr]  # srun torchrun, one per machine


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"RANK": "1"}, "RANK is set to 1 and WORLD_SIZE is not set"),
        ({"RANK": "4", "WORLD_SIZE": "4", **ONE_NODE}, "RANK=4 and WORLD_SIZE=4: a rank lies between 0 and 3"),
        ({"RANK": "0", "WORLD_SIZE": "4", **ONE_NODE, "MASTER_PORT": "0"}, "MASTER_PORT=0 is no port"),
        ({"RANK": "0", "WORLD_SIZE": "4", **ONE_NODE, "MASTER_PORT": "65536"}, "MASTER_PORT=65536 is no port"),
        ({"RANK": "one", "WORLD_SIZE": "4", **ONE_NODE}, "RANK='one' is not a number"),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
            "Open MPI started 8 processes, 4 of them on this machine, and does not say where rank 0 is",
        ),
    ],
)
def test_a_broken_environment_is_refused(env: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        detect(env)


def test_the_right_command() -> None:
    assert command("Open MPI", 6) == "mpirun -n 6"
    assert command("Slurm", 6) == "srun -n 6"
    assert command("", 6) == "torchrun --nproc-per-node 6"


def _clean_environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _assert_trained(out: subprocess.CompletedProcess[str], launcher: str) -> None:
    assert out.returncode == 0, out.stderr
    # Found wherever they stand: lines of several ranks may run into one another.
    joined = re.findall(r"joined (\d) 3 (.*?) gloo", out.stdout)
    assert sorted(joined) == [(str(rank), launcher) for rank in range(3)], out.stdout
    losses = re.findall(r"done (\d) (\d\.\d{12})", out.stdout)
    assert sorted(rank for rank, _ in losses) == ["0", "1", "2"], out.stdout
    assert len({loss for _, loss in losses}) == 1, out.stdout


def test_torchrun_starts_a_plan() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    command_line = [*torchrun, str(FOLDER / "faults.py"), "none"]
    out = subprocess.run(command_line, env=_clean_environment(), capture_output=True, text=True, timeout=600)
    _assert_trained(out, "torchrun")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun (Open MPI) is not installed")
def test_mpirun_starts_a_plan() -> None:
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"]
    command_line = [*mpirun, sys.executable, str(FOLDER / "faults.py"), "none"]
    out = subprocess.run(command_line, env=_clean_environment(), capture_output=True, text=True, timeout=600)
    _assert_trained(out, "Open MPI")


def test_ranks_on_two_kinds_of_devices_are_refused() -> None:
    """A node whose GPU is not seen would choose another transport than the others, and wait for them."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [LauncherRank("torchrun", rank, 2, rank, 2, "127.0.0.1", store.port) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        said = [
            threads.submit(_neighbours, rank, torch.device(kind), Meeting(store.clone(), "127.0.0.1"), 60.0).exception
            for rank, kind in zip(ranks, ("cpu", "meta"), strict=True)
        ]
        assert str(said[0](60)).startswith("rank 0 computes on cpu and rank 1 on meta: give all one kind")
        assert str(said[1](60)).startswith("rank 1 computes on meta and rank 0 on cpu")


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(launch, "SILENT", 0.1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = LauncherRank("Open MPI", 1, 3, 1, 3, "127.0.0.1", store.port)
    with pytest.raises(PeerLost, match=r"rank 1 waited for all 3 processes and only ranks \[1\] came: .* mpirun -n 3"):
        _neighbours(place, torch.device("cpu"), Meeting(store.clone(), "127.0.0.1"), 0.5)
    assert capfd.readouterr().err.count("rank 1 of 3 waits for ranks [0, 2]\n") == 1


def test_run_local_returns_what_each_rank_returned() -> None:
    before = dict(os.environ)
    losses = run_local(3, check_faults.run, "none")
    assert len(losses) == 3 and len(set(losses)) == 1 and losses[0] > 0
    after = {k: v for k, v in os.environ.items() if k != "TORCHELASTIC_SIGNALS_TO_HANDLE"}
    assert after == {k: v for k, v in before.items() if k != "TORCHELASTIC_SIGNALS_TO_HANDLE"}


def test_run_local_runs_a_command(tmp_path: Path) -> None:
    script = "import os, sys; open(os.path.join(sys.argv[1], os.environ['RANK']), 'w').write(os.environ['WORLD_SIZE'])"
    run_local(2, [sys.executable, "-c", script], tmp_path)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"0": "2", "1": "2"}
