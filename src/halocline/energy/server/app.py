"""The application: which path leads where. Requests are read by `wire`, answered by `jobs`, refused in one line."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from halocline.energy.server.jobs import Jobs
from halocline.energy.server.limits import App, Doorkeeper
from halocline.energy.server.metrics import TYPE, ServerMetrics
from halocline.energy.server.refusal import Refusal
from halocline.energy.server.settings import SCHEDULERS, Settings
from halocline.energy.server.store import Store, StoreFailed
from halocline.energy.server.view import frontier_facts, job_facts
from halocline.energy.server.wire import JobInfo, RankInfo, Result, Straggler, read

_PAGE = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"


def make_app(settings: Settings, data: Path) -> App:
    """The whole server, as an ASGI application that keeps everything in the file `data`."""
    store, metrics = Store(data), ServerMetrics()
    jobs = Jobs(store, settings)
    jobs.restore()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(jobs.resume()), asyncio.create_task(jobs.forget_old())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()

    # The pages FastAPI would add take their scripts from elsewhere; ours is below.
    app = FastAPI(title="Halocline energy server", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _add_wire(app, jobs)
    _add_views(app, jobs, store, metrics, settings)

    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(StoreFailed, _not_stored)
    app.add_exception_handler(HTTPException, _no_such_path)
    app.add_exception_handler(Exception, _failed)
    return Doorkeeper(app, settings, metrics)  # type: ignore[arg-type]


def _add_wire(app: FastAPI, jobs: Jobs) -> None:
    """What training jobs say."""

    async def register_job(request: Request) -> Response:
        return _json(await jobs.register(read(JobInfo, await request.body())))

    async def register_rank(request: Request) -> Response:
        job = jobs.find(request.path_params["job"])
        await job.register(read(RankInfo, await request.body()))
        return _json(None)

    async def schedule(request: Request) -> Response:
        job = jobs.find(request.path_params["job"])
        return _json(await job.schedule(_whole(request, "rank")))

    async def result(request: Request) -> Response:
        job = jobs.find(request.path_params["job"])
        body = await request.body()
        await job.report(read(Result, body), body)
        return _json(None)

    async def straggler(request: Request) -> Response:
        job = jobs.find(request.path_params["job"])
        return _json(await job.straggler(read(Straggler, await request.body())))

    app.add_route("/register_job", register_job, methods=["POST"])
    app.add_route("/register_rank/{job}", register_rank, methods=["POST"])
    app.add_route("/schedule/{job}", schedule, methods=["GET"])
    app.add_route("/result/{job}", result, methods=["POST"])
    app.add_route("/straggler/{job}", straggler, methods=["POST"])


def _add_views(app: FastAPI, jobs: Jobs, store: Store, metrics: ServerMetrics, settings: Settings) -> None:
    """What people and machines look at."""

    async def info(request: Request) -> Response:
        from halocline import __version__

        return _json(
            {
                "name": "halocline energy server",
                "version": __version__,
                "scheduler": settings.scheduler,
                "schedulers": [name for name in SCHEDULERS if name != "point-solution" or settings.plans],
                "paths": sorted({getattr(route, "path", "") for route in app.routes}),
                "limits": {
                    "body_bytes": settings.body_limit,
                    "requests_per_second": settings.rate,
                    "requests_per_second_of_a_rank": settings.rank_rate,
                    "rank_timeout_seconds": settings.rank_timeout,
                },
            }
        )

    async def all_jobs(request: Request) -> Response:
        found = list(jobs)
        if "latest" in request.query_params:
            found = found[-max(1, _whole(request, "latest")) :]
        return _json([job_facts(job) for job in found])

    async def one_job(request: Request) -> Response:
        return _json(job_facts(jobs.find(request.path_params["job"])))

    async def frontier(request: Request) -> Response:
        job = jobs.find(request.path_params["job"])
        return _json(await frontier_facts(job, _seconds(request, "time")))

    async def health(request: Request) -> Response:
        return _json({"status": "ok"})

    async def numbers(request: Request) -> Response:
        return Response(metrics.text(jobs, store), media_type=TYPE)

    async def page(request: Request) -> Response:
        name, kind = _PAGE[request.url.path]
        text = (files("halocline.energy.server") / "page" / name).read_text(encoding="utf-8")
        return Response(text, media_type=kind, headers={"Content-Security-Policy": _POLICY})

    app.add_route("/info", info, methods=["GET"])
    app.add_route("/jobs", all_jobs, methods=["GET"])
    app.add_route("/jobs/{job}", one_job, methods=["GET"])
    app.add_route("/frontier/{job}", frontier, methods=["GET"])
    app.add_route("/health", health, methods=["GET"])
    app.add_route("/metrics", numbers, methods=["GET"])
    for path in _PAGE:
        app.add_route(path, page, methods=["GET"])


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return Response(error.body, status_code=error.status, headers=error.headers, media_type="application/json")


async def _not_stored(request: Request, error: Exception) -> Response:
    return _json({"detail": str(error)}, 503)


async def _no_such_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"detail": f"{error.detail}: see /info for the paths there are"}, error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
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
