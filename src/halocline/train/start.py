"""Starting a run: on this process alone, on processes started here, or with those that a launcher has started.

Knows processes, exit codes and what to say at the end; everything else is the trainer's.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import torch

from halocline.data.loader import lost_worker
from halocline.plan.plan import Plan
from halocline.runtime.guards.errors import OutOfMemory
from halocline.runtime.guards.finite import NotFinite
from halocline.runtime.processes.environment import detect
from halocline.runtime.processes.launch import RankFailed, join, run_local
from halocline.runtime.processes.lost import PeerLost
from halocline.runtime.processes.nodes import Nodes
from halocline.train.checkpoint import name_of
from halocline.train.interrupt import EXIT_CODE, SIGNALS, deaf
from halocline.train.planning import model_of, named, plan_to_train
from halocline.train.progress import Progress, progress, score_words
from halocline.train.run_directory import RunDirectory, resolved
from halocline.train.settings import Settings
from halocline.train.trainer import Outcome, Trainer

Show = Callable[[int], Progress]

TOLD = (ValueError, OSError, NotFinite, PeerLost, OutOfMemory)
"""Errors whose words say enough. Of others the place in the code is printed, too."""

_ALONE = 30.0
"""Seconds after which an interrupted launcher whose processes are gone leaves, too."""


@dataclass(frozen=True)
class Failure:
    """Why a rank could not do its part."""

    lost: bool
    """Whether it only lost another rank, which has the better story."""
    when: float
    story: str
    code: int


def start(settings: Settings, shown: Show | None = None, nodes: Nodes | None = None, kept: bool = True) -> int:
    """Run to the end; the exit code. `shown` makes what shows a rank's progress. Of several `nodes` each calls this.
    The last line says where the run's files are, unless they are not to be `kept`."""
    found = resolved(named(settings))
    settings = found.settings
    shown = shown or partial(progress, verbose=settings.run.verbose)
    plan = found.plan or plan_to_train(settings, model_of(settings), found.samples)
    place = detect() if nodes is None else None
    if place is not None or (plan.world_size == 1 and nodes is None):
        return _report(_rank(settings, plan, shown), speaks=place is None or place.rank == 0, kept=kept)
    interrupted: list[int] = []
    with _passing_on(interrupted):
        try:
            ranks = run_local(
                plan.world_size if nodes is None else nodes.share(plan.world_size),
                _started_rank,
                settings,
                plan,
                shown,
                signals="SIGHUP,SIGQUIT",
                nodes=nodes,
                deadline=settings.run.deadline,
            )
        except RankFailed as error:
            if interrupted:
                print("halocline: stopped at once; nothing was saved of the last steps", file=sys.stderr)
                return EXIT_CODE
            print(f"halocline: error: {error}", file=sys.stderr)
            return 1
    failures = sorted((r for r in ranks if isinstance(r, Failure)), key=lambda f: (f.lost, f.when))
    # The first is the cause; the others are ranks that waited for it in vain.
    return _report(failures[0] if failures else ranks[0], speaks=nodes is None or nodes.rank == 0, kept=kept)


def _started_rank(settings: Settings, plan: Plan, shown: Show) -> Outcome | Failure:
    """In a process started here. One that has lost another leaves as failed, so that the launcher ends all."""
    launcher = os.getppid()
    end = _rank(settings, plan, shown)
    if os.getppid() != launcher:
        os._exit(EXIT_CODE)  # the launcher was killed; torch would wait for it to take the outcome
    if isinstance(end, Failure) and end.lost:
        raise SystemExit(end.code)
    return end


def _rank(settings: Settings, plan: Plan, shown: Show) -> Outcome | Failure:
    """One rank's part. An error is handed back: a launcher would print pages for one that is raised."""
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    world = None
    try:
        world = join(settings.run.where, deadline=settings.run.deadline)
        return Trainer(settings, plan=plan, world=world, shown=shown(world.rank)).fit()
    except Exception as error:
        story = str(error) if isinstance(error, TOLD) else lost_worker(error)
        if story is None:
            traceback.print_exc()
            story = f"{type(error).__name__}: {error}"
        if world is not None and world.size > 1 and not isinstance(error, ValueError):
            story = f"rank {world.rank}: {story}"
        code = 2 if isinstance(error, (ValueError, OSError)) else 1
        return Failure(isinstance(error, PeerLost), time.time(), story, code)
    finally:
        if world is not None:
            world.close()  # who waits for this rank is told at once


def _report(end: Outcome | Failure, speaks: bool, kept: bool = True) -> int:
    """Say how the run ended; the exit code."""
    if isinstance(end, Failure):
        if speaks or not end.lost:
            print(f"halocline: error: {' '.join(end.story.split())}", file=sys.stderr)
        return end.code
    if not speaks:
        return EXIT_CODE if end.interrupted else 0
    if end.interrupted:
        saved = f"which is saved: go on with halocline train --resume {end.directory}"
        if Path(end.checkpoint).name != name_of(end.step):
            saved = "which is not saved (--save-every 0)"
        print(f"interrupted after step {end.step}, {saved}", file=sys.stderr)
    else:
        words = [f"{end.step} steps", f"loss {end.loss:.4g}", *score_words(end.scores)]
        print(f"done: {', '.join(words)}{f'; {end.checkpoint}' if end.checkpoint else ''}")
    directory = RunDirectory(Path(end.directory))
    if kept and directory.path.is_dir():
        beside = f"; also {', '.join(end.elsewhere)}" if end.elsewhere else ""
        print(f"files in {directory.files}{beside}", file=sys.stderr if end.interrupted else None)
    return EXIT_CODE if end.interrupted else 0


@contextmanager
def _passing_on(heard: list[int]) -> Iterator[None]:
    """Pass Ctrl-C and SIGTERM on to the processes started here, which decide together when to end."""

    def hear(number: int, frame: FrameType | None = None) -> None:
        heard.append(number)

    def pass_on() -> None:
        told: dict[int, int] = {}
        alone = time.monotonic()
        while not over.is_set():
            if (number := signal.sigtimedwait([signal.SIGINT], 0.1)) is not None:
                hear(number.si_signo)
            # Some may be started only after it was heard.
            children = multiprocessing.active_children() if heard else []
            if children or not heard:
                alone = time.monotonic()
            elif time.monotonic() - alone > _ALONE:
                print("halocline: interrupted; the processes started here are gone", file=sys.stderr, flush=True)
                os._exit(EXIT_CODE)  # whatever this process still waits for will not come
            for child in children:
                if child.pid is not None and told.get(child.pid, 0) < len(heard):
                    told[child.pid] = len(heard)
                    # Once more is SIGTERM, which ends those that are still loading.
                    os.kill(child.pid, heard[0] if len(heard) == 1 else signal.SIGTERM)

    over = threading.Event()
    before = {number: signal.signal(number, hear) for number in SIGNALS}
    with deaf():  # so is this thread: another one listens
        listener = threading.Thread(target=pass_on, name="passing on", daemon=True)
        listener.start()
        try:
            yield
        finally:
            over.set()
            listener.join()
            for number, handler in before.items():
                signal.signal(number, handler)
