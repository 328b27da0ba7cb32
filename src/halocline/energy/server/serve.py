"""Serving: from settings to a process that listens. The only file that knows uvicorn."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from halocline.energy.server.settings import Settings, require_safe

try:
    import uvicorn

    from halocline.energy.server.app import make_app
except ImportError as error:
    raise ValueError(f"the energy server needs {error.name}: pip install 'halocline[server]'") from error


def serve(settings: Settings, data: Path, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serves until it is interrupted. `ready` is told the address when connections are taken; port 0 takes any."""
    require_safe(host, settings.token)
    listener = listen(host, port)
    try:
        app = make_app(settings, data)
        _allow_many_connections()
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
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
