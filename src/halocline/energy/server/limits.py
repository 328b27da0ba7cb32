"""The doorkeeper: who may ask, how often and how much, before anything is parsed. Wraps the application; knows no job.

Whatever goes wrong behind it is answered with one line of JSON: a traceback belongs into the server's log.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import logging
import time
from collections.abc import Callable, Hashable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from halocline.energy.server.settings import ServerSettings
from halocline.energy.server.wire import Refusal

OPEN = frozenset({"/", "/health", "/page.js", "/page.css"})
"""Paths that need no token: they tell nothing of any job."""
PATHS = frozenset("register_job register_rank schedule result straggler frontier jobs info metrics health".split())
"""Paths that are counted by name."""
_HEADERS = 1 << 16
"""Bytes of a request's headers, far beyond what any client sends."""
_GUESSES = 5.0
"""Wrong tokens per second and address."""
_MOST_ASKERS = 65536
"""Askers whose rates are kept; then those who asked little lately are dropped."""
_LOG = logging.getLogger("halocline.energy.server")


class Rates:
    """How often each of many askers may ask: `rate` times a second, and twice as often at once. A bucket each, filled
    steadily, emptied by asking."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._most = max(1.0, 2 * rate)
        self._clock = clock
        self._buckets: dict[Hashable, tuple[float, float]] = {}
        """Asker -> what was left, and when."""

    def wait(self, asker: Hashable) -> float:
        """0 where the asker may go on; else the seconds until it may."""
        now = self._clock()
        left, since = self._buckets.get(asker, (self._most, now))
        left = min(self._most, left + (now - since) * self.rate)
        if left < 1:
            return (1 - left) / self.rate
        if asker not in self._buckets and len(self._buckets) >= _MOST_ASKERS:
            self._drop(now)
        self._buckets[asker] = (left - 1, now)
        return 0.0

    def _drop(self, now: float) -> None:
        full = [
            asker for asker, (left, since) in self._buckets.items() if left + (now - since) * self.rate >= self._most
        ]
        for asker in full or list(self._buckets)[: _MOST_ASKERS // 2]:
            del self._buckets[asker]


class Doorkeeper:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, count: Callable[[str, str, int, float], None]) -> None:
        """`count` is told method, path, status and seconds of every request."""
        self._app, self._count = app, count
        self._token = settings.token.encode() if settings.token else None
        self._body_limit = settings.body_limit
        self._rates = Rates(settings.rate)
        self._guesses = Rates(_GUESSES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        start, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, noting)
        finally:
            first = scope["path"].split("/", 2)[1] if "/" in scope["path"] else ""
            path = f"/{first}" if first in PATHS else "/" if scope["path"] in OPEN else "other"
            method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
            self._count(method, path, status, time.perf_counter() - start)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = dict(scope["headers"])
            self._admit(scope, headers)
            body = await self._body(receive, headers.get(b"content-length", b""))
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
            return
        rest = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return rest.pop() if rest else await receive()

        try:
            await self._app(scope, replay, send)
        except Exception:
            # The application has answered by now that it failed.
            _LOG.exception("%s %s", scope["method"], scope["path"])

    async def _body(self, receive: Receive, announced: bytes) -> bytes:
        """The whole body, if it is small enough. What is too large is taken in and dropped, up to
        eight times the limit: a client that is still sending would not read the answer."""
        parts: list[bytes] = []
        size, more = 0, True
        limit = self._body_limit
        while more and size <= 8 * limit:
            message = await receive()
            if message["type"] != "http.request":
                raise Refusal(400, "the connection was closed inside the body")
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= limit:
                parts.append(part)
        if size > limit:
            told = int(announced) if announced.isdigit() and len(announced) < 20 else size
            raise Refusal(413, f"the body has {max(told, size)} bytes and {limit} are the limit: send less at once")
        return b"".join(parts)

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        address = scope["client"][0] if scope.get("client") else ""
        wait = self._rates.wait(address)
        if wait:
            raise Refusal(429, f"more than {self._rates.rate:g} requests per second from {address}: wait {wait:.2f} s")
        size = sum([len(name) + len(value) for name, value in scope["headers"]])
        if size > _HEADERS:
            raise Refusal(431, f"the headers have {size} bytes and {_HEADERS} are the limit: send fewer")
        _require_own_page(headers)
        if self._token is None:
            _require_no_site(headers.get(b"host", b""))
            return
        if scope["path"] in OPEN:
            return
        given = _token(headers.get(b"authorization", b""))
        if given is not None and hmac.compare_digest(given, self._token):
            return
        wait = self._guesses.wait(address)
        if wait:
            raise Refusal(429, f"too many requests without the token from {address}: wait {wait:.2f} s")
        raise Refusal(401, "the token is missing or wrong: send the header 'Authorization: Bearer TOKEN'")


def _require_own_page(headers: dict[bytes, bytes]) -> None:
    """A browser says which page a request comes from. Another site's must not speak for whoever looks at it, which
    matters most where there is no token."""
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != headers.get(b"host", b""):
        raise Refusal(403, "requests from the pages of another site are not taken: use this server's own page")


def _require_no_site(host: bytes) -> None:
    """Without a token only this machine may ask. Another site's page that has its own name lead here (DNS rebinding)
    is on this machine too, but a browser tells the name: one that can be registered has a dot, and is no number."""
    name = host.partition(b":")[0].rstrip(b".").decode("latin-1")
    if "." not in name:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise Refusal(
            421, f"host {name[:80]!r} may be another site: ask localhost or 127.0.0.1, or give the server a token"
        ) from None


def _token(header: bytes) -> bytes | None:
    """The token of a Bearer header, or the password of a Basic one, which is what a URL user:token@host makes."""
    kind, _, value = header.partition(b" ")
    if kind.lower() == b"bearer":
        return value.strip()
    if kind.lower() == b"basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return None
    return None
