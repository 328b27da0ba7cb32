"""A refusal: a request that is answered no, with the status and the one line that say why. Nothing else of an error
ever reaches a client.
"""

from __future__ import annotations

import json


class Refusal(Exception):
    """What a client gets instead of an answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    @property
    def body(self) -> bytes:
        return json.dumps({"detail": self.detail}).encode()

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the status: whoever may ask again is told when, whoever lacks the token how to send it."""
        if self.status in (408, 429):
            return {"retry-after": "1"}
        return {"www-authenticate": "Bearer"} if self.status == 401 else {}


def unknown_job(job: str) -> Refusal:
    return Refusal(404, f"job {job[:80]!r} is not known here: register it with POST /register_job")
