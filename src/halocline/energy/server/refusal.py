"""A refusal: a request that is answered no, with the status and the one line that say why. Nothing else of an error
ever reaches a client.
"""

from __future__ import annotations


class Refusal(Exception):
    """What a client gets instead of an answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def unknown_job(job: str) -> Refusal:
    return Refusal(404, f"job {job[:80]!r} is not known here: register it with POST /register_job")
