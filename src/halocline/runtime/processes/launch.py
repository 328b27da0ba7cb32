"""Starting: join the processes that a launcher started, or start them on this machine.

    world = join()                          # under torchrun, mpirun or srun; alone without a launcher
    run_local(4, train, "plan.toml")        # starts 4 processes here and calls train("plan.toml") in each
    run_local(4, train, "plan.toml", nodes=Nodes(2, 0, "10.0.0.1", 29500))  # 4 of 8; a second machine starts the others

Knows launchers, devices and process groups; nothing of plans.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from halocline.runtime.processes import logbook
from halocline.runtime.processes.environment import RUN_DIRECTORY, LauncherRank, command, detect
from halocline.runtime.processes.kernels import check_kernels
from halocline.runtime.processes.logbook import OWN, PEER, Logbook
from halocline.runtime.processes.lost import LostRank, PeerLost
from halocline.runtime.processes.meeting import SILENT, Meeting, looked_after, meet, say
from halocline.runtime.processes.nodes import Nodes, interface_towards, is_loopback, machine
from halocline.runtime.processes.watch import Watch
from halocline.runtime.processes.world import World, quietly
from halocline.runtime.transports.transport import NAMES, choose, make

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


class RankFailed(RuntimeError):
    """A process that `run_local` started has failed; says which, what it was and what it was doing."""


# ------------------------------------------------------------------------------------------------------------- joining


def join(
    device: torch.device | str | None = None,
    transport: str = "auto",
    deadline: float = 600.0,
    watch: bool = True,
) -> World:
    """The world of the processes that a launcher started together with this one.

    `device`: "cpu", "cuda" (the GPU of this process's number on its machine) or a certain one; by default a GPU if
    there is one. `transport`: auto, or one of gloo, nccl, ipc, staged, strict. `deadline`: seconds that any wait may
    take. `watch`: stop when another rank dies.
    """
    if transport not in ("auto", *NAMES):
        raise ValueError(f"transport {transport!r} is unknown: use auto or one of {', '.join(NAMES)}")
    if dist.is_available() and dist.is_initialized():
        return World.join(device, deadline, None if transport == "auto" else transport)
    place = detect()
    where = _device(device, place)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if place is None or place.size == 1:
        return World(0, 1, where, deadline, launcher=place.launcher if place is not None else "")
    meeting = meet(place, deadline)
    store = meeting.store
    try:
        on_device, on_node, address = _neighbours(place, where, meeting, deadline)
    finally:
        meeting.over()
    if transport == "auto":
        transport = choose(where, on_device, on_node, place.size)
    elif transport == "ipc" and on_node < place.size:
        raise ValueError(
            f"transport ipc joins processes of one machine, and {on_node} of {place.size} are on this one: use nccl, "
            f"or staged"
        )
    elif transport == "nccl" and on_device > 1:
        raise ValueError(f"transport nccl needs a GPU per process, and {on_device} share one: use ipc or staged")
    # Gloo listens where the other machines can reach it, unless the user has chosen; torch has no other way to say it.
    if GLOO_INTERFACE not in os.environ and not is_loopback(address):
        interface = interface_towards(address, 1)
        os.environ.update({GLOO_INTERFACE: interface} if interface is not None else {})
    with quietly():
        dist.init_process_group(
            "nccl" if transport == "nccl" else "gloo",
            store=dist.PrefixStore("halocline/group", store),
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=deadline),
        )
    book = Logbook(_run_directory(place, store), place.rank, os.getpid(), keep=place.run_directory is not None)
    world = World(
        place.rank, place.size, where, deadline, make(transport, place.rank, where), place.launcher, book, None
    )
    if watch:
        keeper = None if place.store_by_launcher else 0
        world.watch = Watch(place.rank, place.size, store, book, deadline, keeper, on_node == place.size)
        atexit.register(_at_exit, world)
    return world


def _device(device: torch.device | str | None, place: LauncherRank | None) -> torch.device:
    if device is None or str(device) == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device} was asked for and torch sees no GPU: use cpu, or a torch built for CUDA")
    if where.type == "cuda" and where.index is None:
        number = place.local_rank if place is not None else 0
        where = torch.device("cuda", number % torch.cuda.device_count())
    if where.type == "cuda":
        check_kernels(where)
    return where


def _neighbours(place: LauncherRank, device: torch.device, meeting: Meeting, deadline: float) -> tuple[int, int, str]:
    """The most processes that share one GPU, the processes on this machine, and rank 0's address between machines."""
    store, host = meeting.store, machine()
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else f"cpu {place.rank}"
    store.set(f"halocline/place/{place.rank}", json.dumps([host, gpu, meeting.address, device.type]))
    keys = [f"halocline/place/{rank}" for rank in range(place.size)]
    try:
        _wait_for_all(place, store, keys, deadline)
    except RuntimeError as error:
        here = [rank for rank, key in enumerate(keys) if store.check([key])]
        raise PeerLost(
            f"rank {place.rank} waited for all {place.size} processes and only ranks {here} came: start them with "
            f"{command(place.launcher, place.size)}"
        ) from error
    places = [tuple(json.loads(store.get(key))) for key in keys]
    kinds = [kind for *_, kind in places]
    if (other := next((r for r, kind in enumerate(kinds) if kind != device.type), None)) is not None:
        raise ValueError(
            f"rank {place.rank} computes on {device.type} and rank {other} on {kinds[other]}: give all one kind of "
            f"device"
        )
    hosts = [h for h, *_ in places]
    # Those beside rank 0 reach it in many ways; the one that others take leads to the others.
    across = [address for h, _, address, _ in places if h != hosts[0]] if host == hosts[0] else [meeting.address]
    gpus = [(h, g) for h, g, *_ in places]
    return max(map(gpus.count, gpus)), hosts.count(host), next(iter(across), meeting.address)


def _wait_for_all(place: LauncherRank, store: Any, keys: list[str], deadline: float) -> None:
    """Until every rank has left its key; says who has not, if that takes long."""
    if deadline > SILENT and not looked_after(place):
        with suppress(RuntimeError):
            store.wait(keys, timedelta(seconds=SILENT))
            return
        late = [rank for rank, key in enumerate(keys) if not store.check([key])]
        say(place, f"ranks {late}")
        deadline -= SILENT
    store.wait(keys, timedelta(seconds=deadline))


def _run_directory(place: LauncherRank, store: Any) -> Path:
    """Where logbooks are kept: the launcher's choice, or a temporary directory that the ranks of a machine share."""
    if place.run_directory is not None:
        return place.run_directory
    if place.rank == 0:
        store.set("halocline/run", uuid.uuid4().hex)
    path = Path(tempfile.gettempdir()) / f"halocline_run_{store.get('halocline/run').decode()}"
    path.mkdir(exist_ok=True)
    return path


def _at_exit(world: World) -> None:
    if world.watch is None or world.logbook.failed:
        return
    error = getattr(sys, "last_value", None)
    if error is not None:
        stop(world, error)
    else:
        world.watch.leave()
        world.logbook.remove()


def stop(world: World, error: BaseException) -> None:
    """Note in the logbook that this rank fails, and tell the others."""
    detail = f"{type(error).__name__}: {_line(error)}"
    world.logbook.fail(PEER if isinstance(error, PeerLost) else OWN, detail)
    if world.watch is not None:
        world.watch.report(detail)


def _line(error: BaseException) -> str:
    """An error's first line, and what was noted of where it came from."""
    first = next(iter(str(error).strip().splitlines()), "")[:500]
    return " ".join([first, *(f"({note})" for note in getattr(error, "__notes__", ()))])


# ------------------------------------------------------------------------------------------------------------ starting


def run_local(
    processes: int,
    entry: Callable[..., Any] | Sequence[str],
    *args: Any,
    directory: Path | str | None = None,
    threads: int = 1,
    signals: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    nodes: Nodes | None = None,
    deadline: float = 600.0,
) -> list[Any]:
    """Start processes on this machine by torch's elastic launcher; what `entry(*args)` returned on each rank here.

    `entry` is a function of a module (each process imports it) or a command line. Inside, `join()` finds the others.
    `directory` keeps the ranks' logbooks; a temporary one by default. `threads` is OMP_NUM_THREADS, unless set. When
    a process fails, the others are ended and `RankFailed` names it, its role and its last instruction. `signals` are
    those on which the launcher ends the processes at once; the caller looks after others. With `nodes` the ranks count
    on over several machines; each calls this with as many processes and waits `deadline` seconds for the first.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if processes < 1:
        raise ValueError(f"{processes} processes cannot run anything: use at least 1")
    meeting: dict[str, Any] = {"run_id": uuid.uuid4().hex, "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    if nodes is not None and nodes.port:
        where = {"rank": nodes.rank, "timeout": max(1, int(deadline))}
        meeting = {"run_id": "halocline", "rdzv_backend": "static", "rdzv_configs": where}
        meeting["rdzv_endpoint"] = f"{nodes.address}:{nodes.port}"
    here = range(nodes.rank * processes, (nodes.rank + 1) * processes) if nodes is not None else range(processes)
    config = LaunchConfig(
        min_nodes=nodes.count if nodes is not None else 1,
        max_nodes=nodes.count if nodes is not None else 1,
        nproc_per_node=processes,
        max_restarts=0,
        monitor_interval=0.1,
        start_method="spawn",
        signals_to_handle=signals,
        **meeting,
    )
    with tempfile.TemporaryDirectory(prefix="halocline_run_") as temporary, _quiet():
        run = Path(directory) if directory is not None else Path(temporary)
        run.mkdir(parents=True, exist_ok=True)
        for old in run.glob("rank*.log"):
            old.unlink()
        settings = {RUN_DIRECTORY: str(run), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        if "OMP_NUM_THREADS" not in os.environ:
            settings["OMP_NUM_THREADS"] = str(threads)
        with _environment(settings):
            try:
                if callable(entry):
                    returned = elastic_launch(config, _enter)(entry, args)
                else:
                    program, *rest = (*entry, *map(str, args))
                    returned = elastic_launch(config, program)(*rest)
            except ChildFailedError as error:
                codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
                raise RankFailed(str(post_mortem(run, processes, codes, here[0]))) from None
            except dist.DistError as error:
                if nodes is None:
                    raise
                raise RankFailed(
                    f"node {nodes.rank} of {nodes.count} met nobody at {nodes.address}:{nodes.port} in {deadline:g} s: "
                    f"start all nodes with the same MASTER_ADDR and MASTER_PORT; {_line(error)}"
                ) from error
    return [returned.get(rank) for rank in here]


def _enter(entry: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What runs in each process: an error is noted before the launcher sees it."""
    try:
        return entry(*args)
    except BaseException as error:
        place = detect()
        if place is not None and place.run_directory is not None and not isinstance(error, SystemExit):
            logbook.note_failure(place.run_directory, place.rank, f"{type(error).__name__}: {_line(error)}")
        raise


def post_mortem(directory: Path, processes: int, codes: dict[int, int], first: int = 0) -> LostRank:
    """Which rank was the cause, from the logbooks and the exit codes of those that failed (rank -> code). The ranks of
    this machine are `processes` from `first` on."""
    said = {rank: logbook.read(directory, rank) for rank in range(first, first + processes)}

    def loss(rank: int) -> LostRank:
        return (said[rank][0] if rank in said else None) or LostRank(rank)

    ended = [rank for rank, code in codes.items() if code != -signal.SIGTERM]
    # Torch may abort a process that gives up a peer and leaves with messages under way: that is not the cause.
    gave_up = {r for r in ended if codes[r] == -signal.SIGABRT and said[r][1] == PEER}
    for rank in (r for r in ended if codes[r] < 0 and r not in gave_up):
        return replace(loss(rank), reason=f"was killed by {signal.Signals(-codes[rank]).name}")
    for rank in (r for r in said if said[r][1] == OWN):
        return loss(rank)
    for rank in (r for r in ended if not said[r][1]):
        return replace(loss(rank), reason=f"ended with exit code {codes[rank]}")
    # Nobody failed by itself: whoever the others wait for, and who waits for nobody, is late.
    waiting = [rank for rank in said if said[rank][1] == PEER]
    for rank in waiting:
        seen = [rank]
        while (next_ := loss(seen[-1]).waits_for) >= 0 and next_ not in seen:
            seen.append(next_)
        if len(seen) > 1:
            return replace(loss(seen[-1]), reason="is late", detail=loss(rank).detail)
    first = min((*waiting, *codes), default=0)
    return loss(first)


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """For the processes started inside."""
    before = {name: os.environ[name] for name in settings if name in os.environ}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """The elastic launcher's own account of a failure spans a page and does not know what a role is."""
    loggers = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
