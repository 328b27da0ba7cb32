"""Processes that are copies of one which has loaded torch: like those that a user or torchrun starts, but for the
seconds that each would take to load it by itself.

    ended = program("examples/demo.py", directory=tmp_path)           # python examples/demo.py
    ended = program("tiles.py", "-v", processes=4, directory=here)    # torchrun --nproc-per-node 4 tiles.py -v
    for ended in typed(["halocline plan show", "halocline verify small-cnn"], tmp_path): ...

What such a program starts by multiprocessing is copied, too. What launchers and new processes do by themselves is tried
in tests/runtime/processes/test_launch.py, tests/cli/test_train.py and tests/test_run_sh.py.
"""

from __future__ import annotations

import atexit
import multiprocessing.context
import multiprocessing.forkserver
import os
import runpy
import signal
import site
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch.distributed as dist

LOADED = ["torch", "torch._dynamo", "torch.distributed.tensor", "halocline.train.start", "hypothesis", "pytest"]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(LOADED)
PATIENCE = 900
"""Seconds, for a machine that is busy with other things."""


@dataclass(frozen=True)
class Ended:
    """What a program left behind: an exit code, several of several processes, and what all have said."""

    codes: tuple[int, ...]
    out: str
    err: str

    @property
    def code(self) -> int:
        """The worst."""
        return max(self.codes, key=abs)


def program(
    path: Path | str,
    *words: str,
    directory: Path,
    processes: int = 0,
    told: Callable[[int], dict[str, str]] | None = None,
) -> Ended:
    """Run a Python file to its end: alone, or as many `processes`, each `told` who it is; by default as by torchrun."""
    if not processes:
        return _ended([(_run, str(path), words, {})], directory)
    if told is not None:
        return _ended([(_run, str(path), words, told(rank)) for rank in range(processes)], directory)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    all_ranks = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    ranks = [{**all_ranks, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return _ended([(_run, str(path), words, environment) for environment in ranks], directory)


def typed(lines: Sequence[str], directory: Path) -> list[Ended]:
    """Commands of halocline, one after the other in one process; a comment ends a line."""
    with TemporaryDirectory() as logs:
        stems = [f"{logs}/{number}" for number in range(len(lines))]
        whole = _ended([(_type, lines, stems)], directory)
        done = [stem for stem in stems if Path(f"{stem}.code").exists()]
        assert len(done) == len(lines), f"{lines[len(done)]}\n{_read(stems[len(done)], 'err')}{whole.err}"
        return [Ended((int(_read(stem, "code")),), _read(stem, "out"), _read(stem, "err")) for stem in stems]


def _ended(tasks: Sequence[tuple[Any, ...]], directory: Path) -> Ended:
    with TemporaryDirectory() as logs:
        stem = f"{logs}/said"
        started = [
            CONTEXT.Process(target=_child, args=(stem, str(directory), dict(os.environ), *task)) for task in tasks
        ]
        end = time.monotonic() + PATIENCE
        try:
            for process in started:
                process.start()
            for process in started:
                process.join(max(0.0, end - time.monotonic()))
        finally:
            late = [process for process in started if process.exitcode is None and process.pid is not None]
            for process in late:
                with suppress(ProcessLookupError):  # it may not lead a group yet
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()
        ended = Ended(tuple(process.exitcode or 0 for process in started), _read(stem, "out"), _read(stem, "err"))
        assert not late, f"not at its end in {PATIENCE} s: {ended}"
        return ended


def _read(stem: str, ending: str) -> str:
    path = Path(f"{stem}.{ending}")
    return path.read_text(encoding="utf-8") if path.exists() else ""


# ------------------------------------------------------------------------------------------- in the process started


class _Copy(multiprocessing.context.ForkServerProcess):
    """With the environment and the output of who starts it, as if it were started anew."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        self._starter = os.getpid()
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        for number in (1, 2):
            _redirect(number, f"/proc/{self._starter}/fd/{number}")
        super().run()


class _Copies(multiprocessing.context.ForkServerContext):
    Process = _Copy


def copy_what_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what this process starts by `spawn` be copies."""
    monkeypatch.setitem(multiprocessing.context._concrete_contexts, "spawn", _Copies())  # type: ignore[attr-defined]


def _copy_what_is_started() -> None:
    copy_what_is_started(pytest.MonkeyPatch())
    # The process that all are copies of is there, but not a child of this one, where Python would look for it.
    multiprocessing.forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]


def _child(stem: str, directory: str, environment: dict[str, str], act: Callable[..., None], *args: Any) -> None:
    os.setsid()  # whatever it starts can be ended with it
    os.chdir(directory)
    os.environ.clear()
    os.environ.update({**environment, "OMP_NUM_THREADS": "1"})
    _say_into(stem)
    _copy_what_is_started()
    code: Any = 0
    try:
        act(*args)
    except SystemExit as end:
        code = end.code
    except BaseException as error:  # as at the top of a program
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    atexit._run_exitfuncs()  # multiprocessing leaves them out
    sys.exit(code)


def _say_into(stem: str) -> None:
    for number, stream, ending in ((1, sys.stdout, "out"), (2, sys.stderr, "err")):
        stream.flush()
        _redirect(number, f"{stem}.{ending}")


def _redirect(number: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, number)
    os.close(file)


def _run(path: str, words: Sequence[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.argv = [path, *words]
    site.addsitedir(str(Path(path).parent))  # as Python does: what lies beside a program can be imported
    runpy.run_path(path, run_name="__main__")


def _type(lines: Sequence[str], stems: Sequence[str]) -> None:
    from halocline.cli import main

    for line, stem in zip(lines, stems, strict=True):
        name, *words = line.split("#")[0].split()
        assert name == "halocline", line
        _say_into(stem)
        code = main(words)
        _say_into(stem)
        Path(f"{stem}.code").write_text(str(code))
