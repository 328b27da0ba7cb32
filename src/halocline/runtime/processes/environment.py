"""What the launcher says in environment variables: rank, size, and where the processes meet. Read here only."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUN_DIRECTORY = "HALOCLINE_RUN_DIRECTORY"
"""Where the local launcher wants the logbooks."""


@dataclass(frozen=True)
class Names:
    """A launcher's names for what it tells."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str = ""
    command: str = ""
    """How it starts n processes, with {n}."""


def _of_mpi(launcher: str, stem: str, command: str) -> Names:
    return Names(launcher, f"{stem}_RANK", f"{stem}_SIZE", f"{stem}_LOCAL_RANK", f"{stem}_LOCAL_SIZE", command)


LAUNCHERS = (
    Names("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "torchrun --nproc-per-node {n}"),
    _of_mpi("Open MPI", "OMPI_COMM_WORLD", "mpirun -n {n}"),
    _of_mpi("MVAPICH2", "MV2_COMM_WORLD", "mpirun_rsh -n {n}"),
    # Intel MPI, too.
    Names("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec -n {n}"),
    Names("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "srun -n {n}"),
)


@dataclass(frozen=True)
class LauncherRank:
    """This process among those that were started together."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    """Its number on this machine."""
    local_size: int | None
    """Processes on this machine, if the launcher says so."""
    address: str
    """Where rank 0 (or the launcher) keeps the store."""
    port: int
    store_by_launcher: bool = False
    run_directory: Path | None = None


def command(launcher: str, processes: int) -> str:
    """How to start that many processes."""
    found = next((names for names in LAUNCHERS if names.launcher == launcher), LAUNCHERS[0])
    return found.command.format(n=processes)


def detect(environ: Mapping[str, str] | None = None) -> LauncherRank | None:
    """What the environment says; None if no launcher started this process."""
    env = os.environ if environ is None else environ
    found = [names for names in LAUNCHERS if names.rank in env and names.size in env]
    if ("RANK" in env) != ("WORLD_SIZE" in env):
        given, missing = ("RANK", "WORLD_SIZE") if "RANK" in env else ("WORLD_SIZE", "RANK")
        raise ValueError(
            f"{given} is set to {env[given]} and {missing} is not set: set both or neither, or use torchrun"
        )
    if not found:
        return None
    if len(found) > 1 and _outer_slurm(env):
        found = [names for names in found if names.launcher != "Slurm"]
    first = found[0]
    rank, size = _number(env, first.rank), _number(env, first.size)
    for other in found[1:]:
        theirs = _number(env, other.rank), _number(env, other.size)
        if theirs != (rank, size):
            raise ValueError(
                f"the environment contradicts itself: {first.launcher} says rank {rank} of {size} ({first.rank}, "
                f"{first.size}) and {other.launcher} says rank {theirs[0]} of {theirs[1]} ({other.rank}, "
                f"{other.size}): start with one launcher, or unset the variables of the other"
            )
    if not 0 <= rank < size:
        raise ValueError(f"{first.rank}={rank} and {first.size}={size}: a rank lies between 0 and {size - 1}")
    local_rank = next((_number(env, n.local_rank) for n in found if n.local_rank in env), None)
    local_size = next((_number(env, n.local_size) for n in found if n.local_size and n.local_size in env), None)
    if local_size is None and first.launcher == "Slurm":
        local_size = _slurm_tasks_here(env, size)
    address = _address(env, first.launcher, size, local_size)
    directory = env.get(RUN_DIRECTORY)
    return LauncherRank(
        first.launcher,
        rank,
        size,
        local_rank if local_rank is not None else rank,
        local_size,
        address,
        _port(env),
        env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        Path(directory) if directory else None,
    )


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise ValueError(f"{name}={env[name]!r} is not a number: the launcher's environment is broken") from None


def _outer_slurm(env: Mapping[str, str]) -> bool:
    """Whether Slurm only gave the machines, and another launcher started the processes on them: in a batch script,
    or with one task of Slurm's per machine (torchrun's agent, mpirun's daemon)."""
    if "SLURM_JOB_ID" not in env:
        return False
    batch = "SLURM_STEP_ID" not in env and env.get("SLURM_PROCID") == "0"
    nodes = env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES"))
    return batch or (nodes is not None and nodes == env.get("SLURM_NTASKS"))


def _slurm_tasks_here(env: Mapping[str, str], size: int) -> int | None:
    """From e.g. SLURM_STEP_TASKS_PER_NODE=4(x2); None if machines differ."""
    if env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES")) == "1":
        return size
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", ""))
    match = re.fullmatch(r"(\d+)(\(x\d+\))?", tasks)
    return int(match[1]) if match else None


def _address(env: Mapping[str, str], launcher: str, size: int, local_size: int | None) -> str:
    if "MASTER_ADDR" in env:
        return env["MASTER_ADDR"]
    nodes = env.get("SLURM_STEP_NODELIST", env.get("SLURM_JOB_NODELIST", ""))
    if local_size == size or (launcher == "Slurm" and not nodes):
        return "127.0.0.1"
    if launcher == "Slurm":
        return first_node(nodes)
    here = f"{local_size} of them on this machine" if local_size is not None else "some perhaps on other machines"
    raise ValueError(
        f"{launcher} started {size} processes, {here}, and MASTER_ADDR is not set: pass the name of the machine of "
        f"rank 0 to all of them, e.g. {command(launcher, size)} "
        + ("-x MASTER_ADDR=$(hostname)" if launcher == "Open MPI" else "with MASTER_ADDR=$(hostname) exported")
    )


def first_node(nodes: str) -> str:
    """The first machine of a Slurm list such as gpu[03-05,9],big1."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        raise ValueError(f"the list of machines {nodes!r} cannot be read: set MASTER_ADDR to the machine of rank 0")
    return match[1] + (match[2] or "") + (match[3] or "")


def _port(env: Mapping[str, str]) -> int:
    """Given, or derived from the job, so that two jobs on one machine do not meet."""
    if "MASTER_PORT" in env:
        return _number(env, "MASTER_PORT")
    for name in ("SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_ID_STRING"):
        if name in env:
            step = env.get("SLURM_STEP_ID", "")
            return 20000 + zlib.crc32(f"{env[name]}.{step}".encode()) % 10000
    return 29500
