"""The application and its process: which path leads where, and a server that listens. Requests are read by `wire`,
answered by `jobs` and `view`, refused in one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.resources import files
from pathlib import Path

from halocline.energy.server.settings import SCHEDULERS, ServerSettings, require_safe

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from starlette.exceptions import HTTPException

    from halocline.energy.server.job import Job
    from halocline.energy.server.jobs import Jobs
    from halocline.energy.server.limits import Doorkeeper
    from halocline.energy.server.store import Store, StoreFailed
    from halocline.energy.server.view import METRICS_TYPE, ServerMetrics, frontier_facts, job_facts
    from halocline.energy.server.wire import JobInfo, RankInfo, Refusal, Result, Straggler, read
except ImportError as error:
    raise ValueError(f"the energy server needs {error.name}: pip install 'halocline[server]'") from error

_PAGE = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"


def make_app(settings: ServerSettings, data: Path) -> Doorkeeper:
    """The whole server, as an ASGI application that keeps everything in the file `data`."""
    store, metrics = Store(data), ServerMetrics()
    jobs = Jobs(store, settings)
    jobs.restore()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(jobs.resume()), asyncio.create_task(jobs.forget_old())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()

    # The pages FastAPI would add take their scripts from elsewhere; ours is below.
    app = FastAPI(title="Halocline energy server", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    answers = {**_wire(jobs), **_views(jobs, store, metrics)}
    answers["/info"] = "GET", lambda request, body: _info(settings, sorted(answers))
    for path, (method, answer) in answers.items():
        app.add_route(path, _responding(answer), methods=[method])
    for kind in (Refusal, StoreFailed, HTTPException, Exception):
        app.add_exception_handler(kind, _failed)
    return Doorkeeper(app, settings, metrics.count)


Answer = Callable[[Request, bytes], object]
"""Of a request and its body gives, now or later, what is sent as JSON (None: null), or a whole response."""

Answers = dict[str, tuple[str, Answer]]
"""Path -> the method with which it is asked, and who answers."""


def _responding(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        found = answer(request, await request.body())
        if isinstance(found, Awaitable):
            found = await found
        return found if isinstance(found, Response) else _json(found)

    return respond


def _wire(jobs: Jobs) -> Answers:
    """What training jobs say."""
    return {
        "/register_job": ("POST", lambda request, body: jobs.register(read(JobInfo, body))),
        "/register_rank/{job}": ("POST", lambda request, body: _job(request, jobs).register(read(RankInfo, body))),
        "/schedule/{job}": ("GET", lambda request, body: _job(request, jobs).schedule(_whole(request, "rank"))),
        "/result/{job}": ("POST", lambda request, body: _job(request, jobs).report(read(Result, body), body)),
        "/straggler/{job}": ("POST", lambda request, body: _job(request, jobs).straggler(read(Straggler, body))),
    }


def _views(jobs: Jobs, store: Store, metrics: ServerMetrics) -> Answers:
    """What people and machines look at."""

    def all_jobs(request: Request, body: bytes) -> object:
        found = list(jobs)
        if "latest" in request.query_params:
            found = found[-max(1, _whole(request, "latest")) :]
        return [job_facts(job) for job in found]

    return {
        "/jobs": ("GET", all_jobs),
        "/jobs/{job}": ("GET", lambda request, body: job_facts(_job(request, jobs))),
        "/frontier/{job}": (
            "GET",
            lambda request, body: frontier_facts(_job(request, jobs), _seconds(request, "time")),
        ),
        "/health": ("GET", lambda request, body: {"status": "ok"}),
        "/metrics": ("GET", lambda request, body: Response(metrics.text(jobs, store), media_type=METRICS_TYPE)),
        **{path: ("GET", _page) for path in _PAGE},
    }


def _info(settings: ServerSettings, paths: Sequence[str]) -> object:
    from halocline import __version__

    return {
        "name": "halocline energy server",
        "version": __version__,
        "scheduler": settings.scheduler,
        "schedulers": [name for name in SCHEDULERS if name != "point-solution" or settings.plans],
        "paths": paths,
        "limits": {
            "body_bytes": settings.body_limit,
            "requests_per_second": settings.rate,
            "requests_per_second_of_a_rank": settings.rank_rate,
            "rank_timeout_seconds": settings.rank_timeout,
        },
    }


def _page(request: Request, body: bytes) -> Response:
    name, kind = _PAGE[request.url.path]
    text = (files("halocline.energy.server") / "page" / name).read_text(encoding="utf-8")
    return Response(text, media_type=kind, headers={"Content-Security-Policy": _POLICY})


def _job(request: Request, jobs: Jobs) -> Job:
    return jobs.find(request.path_params["job"])


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return error.response()
    if isinstance(error, StoreFailed):
        return _json({"detail": str(error)}, 503)
    if isinstance(error, HTTPException):
        return _json({"detail": f"{error.detail}: see /info for the paths there are"}, error.status_code)
    return _json({"detail": "the server failed at this request: see its log"}, 500)


def _json(content: object, status: int = 200) -> Response:
    return Response(_ENCODE(content), status_code=status, media_type="application/json")


def _whole(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise Refusal(422, f"{name} = {text[:40]!r} is not a whole number of at least 0: write ?{name}=0")
    return int(text)


def _seconds(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e15:
        raise Refusal(422, f"{name} = {text[:40]!r} is not a number of seconds above 0: write ?{name}=1.5")
    return value


# -- the process ---------------------------------------------------------------------------------------------------


def serve(settings: ServerSettings, data: Path, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serves until it is interrupted. `ready` is told the address when connections are taken; port 0 takes any."""
    require_safe(host, settings.token)
    listener = listen(host, port)
    try:
        app = make_app(settings, data)
        _allow_many_connections()
        config = uvicorn.Config(
            app,
            lifespan="on",
            access_log=False,
            log_level="error",  # what is no HTTP at all would fill the log
            server_header=False,
            backlog=4096,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,  # ranks that wait for each other would hold it for minutes
        )
        at = listener.getsockname()
        ready(f"http://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]}")
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """Bound before anything else, so that a port in use is told at once and port 0 is known."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ValueError(f"host {host} is no address of this machine ({error.strerror}): use 127.0.0.1") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(4096)
    except OSError as error:
        listener.close()
        raise ValueError(f"cannot listen on {host}:{port} ({error.strerror}): use another --port") from error
    return listener


def _allow_many_connections() -> None:
    """A connection is a file; many systems allow 1,024 until more are asked for."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
