"""Requests that are wrong in every way a client can be wrong, drawn at random and the same for the same draw."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

PATHS = (
    ("/register_job", "POST"), ("/register_rank/{job}", "POST"), ("/result/{job}", "POST"), ("/result/{job}", "POST"),
    ("/straggler/{job}", "POST"), ("/schedule/{job}", "GET"), ("/frontier/{job}", "GET"), ("/jobs/{job}", "GET"),
    ("/jobs", "GET"), ("/info", "GET"), ("/health", "GET"), ("/metrics", "GET"), ("/", "GET"), ("/page.js", "GET"),
)  # fmt: skip
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 10**9, 10**30, -0.0, 1.5, 1e308, "", "0", "nan", "\u0000", "é\ud7ff", [], {},
    [[]], [None], [-1], [1e300, 1e300], {"forward": [[1.0]]}, {"forward": [[-1]]}, {"": {"": {}}}, "x" * 5000,
    [[0.1] * 8] * 8,
    "[[stages]]\nlayers = [0, 1]\n", 'schedule = "gems"\n[[stages]]\nlayers = [0, 9]\ntiles = [2, 2]\n', "../../x",
)  # fmt: skip
FIELDS = (
    "job_id", "pp_degree", "dp_degree", "tp_degree", "world_size", "job_metadata", "plan", "device", "blocking_power",
    "scheduler", "rank", "dp_rank", "pp_rank", "tp_rank", "available_frequencies", "iter_time", "iter_energy",
    "time_breakdown", "energy_breakdown", "round", "factor",
)  # fmt: skip
SOUND: tuple[dict[str, Any], ...] = (
    {"pp_degree": 2, "dp_degree": 1, "tp_degree": 1, "world_size": 2},
    {"rank": 0, "dp_rank": 0, "pp_rank": 0, "tp_rank": 0, "available_frequencies": [1410, 1395]},
    {"rank": 1, "iter_time": [1.0], "iter_energy": [9.0], "time_breakdown": {"forward": [[0.1]]}},
    {"factor": 1.2, "rank": 0},
)
QUERIES = ("", "?rank=0", "?rank=1", "?rank=-1", "?rank=%00", "?rank=0&rank=9", "?time=1", "?time=1e-300", "?time=inf")
NAMES = (
    "nobody",
    "%2e%2e",
    "a b".replace(" ", "%20"),
    "%ff%fe",
    "x" * 3000,
    "'; DROP TABLE jobs; --".replace(" ", "+"),
)


def requests(job: str, draw: random.Random, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Method, path and body of each."""
    for _ in range(count):
        name = job if draw.random() < 0.7 else draw.choice(NAMES)
        place, method = draw.choice(PATHS)
        path = place.replace("{job}", name) + (draw.choice(QUERIES) if draw.random() < 0.6 else "")
        if draw.random() < 0.1:
            method = draw.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "NONSENSE"))
        yield method, path, body(draw)


def body(draw: random.Random) -> bytes:
    """A sound body, one with some fields replaced, one cut off, or noise."""
    kind = draw.random()
    if kind < 0.1:
        return draw.randbytes(draw.randrange(200))
    made = dict(draw.choice(SOUND))
    for _ in range(draw.randrange(4)):
        made[draw.choice(FIELDS)] = draw.choice(STRANGE)
    text = json.dumps(made).encode()
    if kind < 0.2:
        return text[: draw.randrange(len(text))]
    if kind < 0.3:
        return text.replace(b"1.0", draw.choice((b"NaN", b"Infinity", b"-1e999", b"1e400", b"00", b"[" * 3000)))
    return text
