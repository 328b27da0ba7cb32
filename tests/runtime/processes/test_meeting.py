"""Meeting without MASTER_ADDR: on one machine and on several, told by the launchers' own variables and by real ones."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist

from halocline.runtime.processes import meeting
from halocline.runtime.processes.environment import LauncherRank, detect
from halocline.runtime.processes.lost import PeerLost
from halocline.runtime.processes.meeting import meet
from harness.hosts import Host, hosts
from harness.simulated_hydra import simulated_hydra

MEETS = (
    "import os, pathlib; from halocline.runtime import join; w = join('cpu', deadline=300.0); "
    "pathlib.Path(f'{w.launcher} {w.rank} {w.size} {os.getpid()}').touch(); w.close()"
)
"""Leaves an empty file that says who has met: what processes print at once may run into one another."""
TRAIN = (
    "train small-cnn --stages 4 --batch-size 4 --microbatches 2 --dtype float64 --steps 2 --device cpu --save-every 0"
)
MPIRUN = shutil.which("mpirun")
HYDRA = shutil.which("mpiexec.hydra")
needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason="needs Open MPI: apt-get install openmpi-bin")
needs_hydra = pytest.mark.skipif(HYDRA is None, reason="needs MPICH's launcher: apt-get install mpich")
AS_ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []


def open_mpi(rank: int, size: int, here: int, job: str) -> dict[str, str]:
    """What Open MPI 5 sets; here: ranks per machine."""
    said = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank % here, "LOCAL_SIZE": here}
    names = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in said.items()}
    return {**names, "PMIX_NAMESPACE": f"prterun-login-{job}@1", "PMIX_RANK": str(rank)}


def mvapich2(rank: int, size: int, here: int, job: str) -> dict[str, str]:
    """What mpirun_rsh sets."""
    said = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank % here, "LOCAL_SIZE": here}
    names = {f"MV2_COMM_WORLD_{name}": str(value) for name, value in said.items()}
    names |= {"MPIRUN_RSH_LAUNCH": "1", "MPISPAWN_MPIRUN_HOST": "login", "PMI_ID": str(rank)}
    return {**names, "PMI_PORT": "localhost:40311", "MPDMAN_KVS_TEMPLATE": f"kvs_417_login_{job}"}


def slurm(rank: int, size: int, here: int, job: str) -> dict[str, str]:
    """What srun sets."""
    nodes = size // here
    said = {"JOB_ID": job, "STEP_ID": 0, "PROCID": rank, "NTASKS": size, "LOCALID": rank % here, "NNODES": nodes}
    said |= {"STEP_NODELIST": f"node[1-{nodes}]" if nodes > 1 else "node1", "STEP_NUM_NODES": nodes}
    said |= {"STEP_TASKS_PER_NODE": f"{here}(x{nodes})" if nodes > 1 else str(here), "DISTRIBUTION": "block"}
    return {f"SLURM_{name}": str(value) for name, value in said.items()}


LAUNCHERS = {"Open MPI": open_mpi, "MVAPICH2": mvapich2, "Slurm": slurm}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    with hosts(tmp_path_factory.mktemp("hosts")) as two:
        yield two


def ended(commands: Sequence[tuple[list[str], Mapping[str, str]]], directory: Path, passed: Sequence[int] = ()) -> str:
    """What processes said that ran at once, all to a good end."""
    log = directory / "said.log"
    with open(log, "ab") as file:
        started = [
            subprocess.Popen(
                command,
                env={**os.environ, "OMP_NUM_THREADS": "1", **told},
                cwd=directory,
                stdout=file,
                stderr=file,
                pass_fds=passed,
                start_new_session=True,
            )
            for command, told in commands
        ]
        try:
            codes = [process.wait(600) for process in started]
        finally:
            for process in started:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = log.read_text()
    assert set(codes) == {0}, said
    return said


def met(directory: Path) -> list[str]:
    """Launcher, rank and size of every process that has met the others of its job."""
    return sorted(path.name.rpartition(" ")[0] for path in directory.glob("* * * *"))


def losses(run: Path) -> list[float]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in entries]


@pytest.fixture(scope="module")
def one_machines_losses(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    directory = tmp_path_factory.mktemp("bare")
    ended([([sys.executable, "-m", "halocline", *TRAIN.split(), "--run-dir", "run"], {})], directory)
    return losses(directory / "run")


# ------------------------------------------------------------------------------------------------- several machines


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_machines_train_by_what_the_launcher_sets(
    launcher: str, machines: list[Host], one_machines_losses: list[float], tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "halocline", *TRAIN.split(), "--run-dir", "run"]
    told = [LAUNCHERS[launcher](rank, 4, 2, "4711") for rank in range(4)]
    # Rank 0 starts last: the others wait for it.
    said = ended([(machines[rank // 2].command(*words), told[rank]) for rank in (3, 2, 1, 0)], tmp_path)
    assert said.count("done: 2 steps") == 1
    assert losses(tmp_path / "run") == pytest.approx(one_machines_losses, rel=1e-10)
    assert not list(tmp_path.glob(".halocline-*"))


@needs_mpirun
def test_two_machines_train_under_mpirun(
    machines: list[Host], one_machines_losses: list[float], tmp_path: Path
) -> None:
    agent = tmp_path / "agent.sh"
    second = shlex.join(machines[1].command())
    agent.write_text(
        f'#!/bin/sh\nwhile [ "$1" != {machines[1].name} ]; do shift; done\nshift\nexec {second} sh -c "$*"\n'
    )
    agent.chmod(0o755)
    where = ",".join(f"{host.name}:2" for host in machines)
    mpirun = [str(MPIRUN), *AS_ROOT, "--mca", "plm_rsh_agent", str(agent), "--bind-to", "none", "-np", "4", "-H", where]
    exported = [word for name in ("OMP_NUM_THREADS", "PYTHONPATH") if name in os.environ for word in ("-x", name)]
    words = [sys.executable, "-m", "halocline", *TRAIN.split(), "--run-dir", "run"]
    said = ended([(machines[0].command(*mpirun, *exported, *words), {})], tmp_path)
    assert said.count("done: 2 steps") == 1
    assert losses(tmp_path / "run") == pytest.approx(one_machines_losses, rel=1e-10)


@pytest.mark.parametrize("here", [2, 1], ids=["one machine", "two machines"])
def test_mpichs_launcher_tells_without_a_shared_directory(here: int, machines: list[Host], tmp_path: Path) -> None:
    with simulated_hydra(2) as launcher:
        commands = []
        for rank, descriptor in enumerate(launcher.descriptors):
            said = {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank % here, "MPI_LOCALNRANKS": here}
            told = {**{name: str(value) for name, value in said.items()}, "PMI_FD": str(descriptor)}
            host = machines[rank // here]
            commands.append((host.command(sys.executable, "-c", MEETS), told))
        ended(commands, tmp_path, launcher.descriptors)
    assert met(tmp_path) == ["MPICH 0 2", "MPICH 1 2"]


@needs_hydra
def test_mpichs_own_launcher_tells(tmp_path: Path) -> None:
    script = f'for time in 1 2; do {sys.executable} -c "{MEETS}"; done'  # the same ranks meet twice
    ended([([str(HYDRA), "-n", "2", "sh", "-ec", script], {})], tmp_path)
    assert met(tmp_path) == ["MPICH 0 2", "MPICH 0 2", "MPICH 1 2", "MPICH 1 2"]


# ------------------------------------------------------------------------------------------------------ one machine


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_jobs_on_one_machine_do_not_meet(launcher: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", MEETS]
    jobs = [LAUNCHERS[launcher](rank, 2, 2, job) for job in ("4711", "4712") for rank in (0, 1)]
    ended([(words, told) for told in jobs], tmp_path)
    assert met(tmp_path) == [f"{launcher} {rank} 2" for rank in (0, 0, 1, 1)]


@needs_mpirun
def test_two_mpiruns_on_one_machine_do_not_meet(tmp_path: Path) -> None:
    mpirun = [str(MPIRUN), *AS_ROOT, "--oversubscribe", "--bind-to", "none", "-np", "2"]
    ended([([*mpirun, sys.executable, "-c", MEETS], {})] * 2, tmp_path)
    assert met(tmp_path) == [f"Open MPI {rank} 2" for rank in (0, 0, 1, 1)]


def places(directory: Path, size: int = 2, **told: object) -> list[LauncherRank]:
    """Ranks of a job whose rank 0 tells in a file, on one machine."""
    known = {"address": "127.0.0.1", "port": 0, "job": "prterun-login-1@1", "rendezvous": directory, **told}
    return [LauncherRank("Open MPI", rank, size, rank, size, **known) for rank in range(size)]  # type: ignore[arg-type]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_file_of_an_earlier_job_is_not_believed(tmp_path: Path) -> None:
    """Whoever starts before rank 0 reads it: its port is closed, or another program's, or another store's."""
    strangers = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    silent = socket.create_server(("127.0.0.1", 0))
    stale = [free_port(), silent.getsockname()[1], strangers.port]
    first, second = places(tmp_path)
    for port in stale:
        with ThreadPoolExecutor(2) as threads:
            earlier = threads.submit(meet, first, 60.0).result()
            assert earlier.file is not None
            left = {**json.loads(earlier.file.read_text()), "word": "another", "port": port}
            earlier.file.write_text(json.dumps(left))
            waiting = threads.submit(meet, second, 60.0)
            with suppress(TimeoutError):
                waiting.result(0.5)
            assert not waiting.done()
            now = meet(first, 60.0)
            now.store.set("rank 0", str(port))
            assert waiting.result(60).store.get("rank 0").decode() == str(port)
            now.over()
    assert not list(tmp_path.iterdir())
    silent.close()


def test_a_wait_ends_and_names_the_ways_out(tmp_path: Path) -> None:
    _, second = places(tmp_path)
    with pytest.raises(PeerLost, match=r"rank 1 of 2 waited 0.3 s for .*MASTER_ADDR.*HALOCLINE_RENDEZVOUS"):
        meet(second, 0.3)
    with simulated_hydra(2) as launcher:
        _, second = places(tmp_path, pmi=launcher.descriptors[1], job="", rendezvous=None)
        with pytest.raises(PeerLost, match=r"not all 2 processes came in 0.3 s .*MASTER_ADDR.*HALOCLINE_RENDEZVOUS"):
            meet(second, 0.3)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    first, _ = places(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"nowhere.*No such file.*MASTER_ADDR.*HALOCLINE_RENDEZVOUS"):
        meet(first, 60.0)


@pytest.mark.parametrize(
    "words",
    ["", "[" * 100_000, '{"word":"","addresses":["127.0.0.1"],"port":1}', '{"word":"a","addresses":[5],"port":1}',
     '{"word":"a","addresses":"here","port":1}', '{"word":"a","addresses":["127.0.0.1"],"port":"x"}', "\udcff"],
)  # fmt: skip
def test_a_file_with_something_else_in_it_is_not_believed(words: str, tmp_path: Path) -> None:
    first, second = places(tmp_path)
    file = meet(first, 60.0).file
    assert file is not None
    file.write_bytes(words.encode(errors="surrogateescape"))
    with pytest.raises(PeerLost, match=r"waited 0.1 s for .*, which rank 0 writes: "):
        meet(second, 0.1)


def test_an_address_of_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    first, second = places(Path(), address="::1", port=free_port())
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(meet, second, 60.0)
        kept = meet(first, 60.0)
        kept.store.set("rank 0", "here")
        assert other.result(60).store.get("rank 0") == b"here"


def test_who_waits_at_a_known_store_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 0 itself, too, which has not to look for the store and waits for the others."""
    monkeypatch.setattr(meeting, "SILENT", 0.1)
    first, _ = places(Path(), port=free_port())
    with pytest.raises(PeerLost, match=r"rank 0 waited 2 s for all 2 processes and 1 came .*: start them with mpirun"):
        meet(first, 2.0)
    assert "rank 0 of 2 waits for all processes at the store of rank 0, 127.0.0.1:" in capfd.readouterr().err


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        for address in ("127.0.0.1", ""):
            first, _ = places(Path(), address=address, port=port)
            with pytest.raises(ValueError, match=f"port {port} of rank 0's machine is taken: set MASTER_PORT"):
                meet(first, 60.0)


def test_a_derived_port_of_another_job_is_noticed() -> None:
    """Two jobs of Slurm whose numbers lie 10000 apart."""
    told = [detect(slurm(rank, 2, 1, job)) for rank, job in ((0, "4711"), (1, "14711"))]
    assert [place.port for place in told if place is not None] == [24711, 24711]
    port = free_port()
    first, _ = places(Path(), job="4711.0", port=port)
    _, second = places(Path(), job="14711.0", port=port)
    with ThreadPoolExecutor(1) as threads:
        keeper = threads.submit(meet, first, 60.0)  # its own second rank never comes
        with pytest.raises(PeerLost, match=r"job 14711.0 found the store of job 4711.0 at .*: set MASTER_PORT"):
            meet(second, 60.0)
        assert keeper.exception(60) is None
