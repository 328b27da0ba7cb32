"""What the launcher says in environment variables: rank, size, and where the processes meet. Read here only.

Where rank 0 is, is said by MASTER_ADDR, by Slurm's list of nodes, or by nobody: then rank 0 tells it, through the
launcher or in a file (`meeting`). A variable that only some ranks are given, such as a batch system's hostfile, is not
asked: ranks that disagree never meet.
"""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUN_DIRECTORY = "HALOCLINE_RUN_DIRECTORY"
"""Where the local launcher wants the logbooks."""
RENDEZVOUS = "HALOCLINE_RENDEZVOUS"
"""A directory that all nodes share, in which rank 0 says where it is."""
_STEPS_OF_SHELLS = ("4294967290", "4294967291")
"""Slurm's numbers for the step of salloc's shell and of a batch script."""
WAYS_OUT = (
    f"set MASTER_ADDR to rank 0's machine for all ranks, or {RENDEZVOUS} to a directory of this job that all share"
)
"""Where ranks cannot find each other by themselves."""


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
    job: tuple[str, ...] = ()
    """What is alike on the ranks of a job and differs between jobs that run at once; the first that is set counts."""


def _of_mpi(launcher: str, stem: str, command: str, *job: str) -> Names:
    return Names(launcher, f"{stem}_RANK", f"{stem}_SIZE", f"{stem}_LOCAL_RANK", f"{stem}_LOCAL_SIZE", command, job)


LAUNCHERS = (
    Names("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "torchrun --nproc-per-node {n}"),
    # A random key of Open MPI 4; mpirun's host and process number of Open MPI 5.
    _of_mpi("Open MPI", "OMPI_COMM_WORLD", "mpirun -n {n}", "OMPI_MCA_orte_precondition_transports", "PMIX_NAMESPACE"),
    # A random number, mpirun_rsh's host and its process number.
    _of_mpi("MVAPICH2", "MV2_COMM_WORLD", "mpirun_rsh -n {n}", "MPDMAN_KVS_TEMPLATE"),
    # Before MPICH: srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE, too.
    Names("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "srun -n {n}", ("SLURM_JOB_ID",)),
    # Intel MPI, too.
    Names("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec -n {n}"),
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
    """Where rank 0 (or the launcher) keeps the store; empty if rank 0 has to tell."""
    port: int
    """Of the store; 0 if rank 0 takes any free one and tells."""
    store_by_launcher: bool = False
    run_directory: Path | None = None
    job: str = ""
    """What all ranks of this job are told alike, and no other job; empty if the launcher has no such word."""
    pmi: int | None = None
    """The descriptor at which MPICH's launcher passes words from rank to rank."""
    rendezvous: Path | None = None
    """The directory in which rank 0 tells where it is, if not by `pmi`."""


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
    if first.launcher == "Slurm" and _beside_tasks(env):
        if size == 1:
            return None
        raise ValueError(
            f"SLURM_NTASKS={size}, and this process is not one of srun's tasks but in the batch script or the shell "
            f"beside them: start it with {command('Slurm', size)}, or unset SLURM_PROCID to stay on this machine"
        )
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
    job = _job(env, first)
    directory = env.get(RUN_DIRECTORY)
    return LauncherRank(
        first.launcher,
        rank,
        size,
        local_rank if local_rank is not None else rank,
        local_size,
        *_meeting_point(env, first, job, size, local_size),
        store_by_launcher=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        run_directory=Path(directory) if directory else None,
        job=job,
        pmi=_pmi(env, job),
        rendezvous=_rendezvous(env, job, one_node=local_size == size),
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
    nodes = env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES"))
    return _beside_tasks(env) or (nodes is not None and nodes == env.get("SLURM_NTASKS"))


def _beside_tasks(env: Mapping[str, str]) -> bool:
    """Whether this is the one process that Slurm starts to run a batch script or the shell of salloc. It is told of the
    tasks that srun may start from there, and is none of them."""
    step = env.get("SLURM_STEP_ID", "")
    return "SLURM_JOB_ID" in env and env.get("SLURM_PROCID") == "0" and step in ("", *_STEPS_OF_SHELLS)


def _slurm_tasks_here(env: Mapping[str, str], size: int) -> int | None:
    """From e.g. SLURM_STEP_TASKS_PER_NODE=4(x2); None if machines differ."""
    if env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES")) == "1":
        return size
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", ""))
    match = re.fullmatch(r"(\d+)(\(x\d+\))?", tasks)
    return int(match[1]) if match else None


def _meeting_point(
    env: Mapping[str, str], names: Names, job: str, size: int, local_size: int | None
) -> tuple[str, int]:
    """Address and port of the store, as far as they are known before rank 0 has spoken."""
    if env.get("MASTER_ADDR"):
        return env["MASTER_ADDR"], _port(env, job)
    port = _given_port(env) or 0
    told = bool(job) or _pmi(env, job) is not None  # rank 0 can tell without a word from the user
    nodes = env.get("SLURM_STEP_NODELIST", env.get("SLURM_JOB_NODELIST", ""))
    if local_size == size or (names.launcher == "Slurm" and not nodes):
        return "127.0.0.1", port if told and local_size == size else _port(env, job)
    if env.get(RENDEZVOUS):
        return "", port
    if names.launcher == "Slurm" and env.get("SLURM_DISTRIBUTION") != "arbitrary":
        return first_node(nodes), _port(env, job)
    if told:
        return "", port
    here = f"{local_size} of them on this machine" if local_size is not None else "some perhaps on other machines"
    raise ValueError(f"{names.launcher} started {size} processes, {here}, and does not say where rank 0 is: {WAYS_OUT}")


def first_node(nodes: str) -> str:
    """The first machine of a Slurm list such as gpu[03-05,9],big1 or rack[1-2]n[01-16]-ib."""
    first = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+(?=,|$)", nodes)
    name = re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0]) if first is not None else ""
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"the list of machines {nodes!r} cannot be read: set MASTER_ADDR to the machine of rank 0")
    return name


def _job(env: Mapping[str, str], names: Names) -> str:
    word = next((env[name] for name in names.job if env.get(name)), "")
    return f"{word}.{env.get('SLURM_STEP_ID', '')}" if word and names.launcher == "Slurm" else word


def _pmi(env: Mapping[str, str], job: str) -> int | None:
    return _number(env, "PMI_FD") if "PMI_FD" in env and not job and not env.get(RENDEZVOUS) else None


def _rendezvous(env: Mapping[str, str], job: str, one_node: bool) -> Path | None:
    """The user's choice; else what the ranks share: a temporary directory on one node, the working directory on
    several."""
    if env.get(RENDEZVOUS):
        return Path(env[RENDEZVOUS])
    if not job:
        return None
    return Path(tempfile.gettempdir()) if one_node else Path.cwd()


def _port(env: Mapping[str, str], job: str) -> int:
    """Given, or derived from the job: jobs of Slurm that run at once count on, so theirs differ."""
    given = _given_port(env)
    if given is not None:
        return given
    if not job:
        return 29500
    slurm = re.fullmatch(r"(\d+)\.(\d*)", job)
    number = int(slurm[1]) + 3331 * int(slurm[2] or 0) if slurm else zlib.crc32(job.encode())
    return 20000 + number % 10000


def _given_port(env: Mapping[str, str]) -> int | None:
    if "MASTER_PORT" not in env:
        return None
    port = _number(env, "MASTER_PORT")
    if not 0 < port < 65536:
        raise ValueError(f"MASTER_PORT={port} is no port: set one of 1 to 65535")
    return port
