"""Metrics in Prometheus' text form: requests by path and status, how long they took, the state of jobs and store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from halocline.energy.server.job import Job
from halocline.energy.server.store import Store

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_PREFIX = "halocline_energy_"


class ServerMetrics:
    """Counts since the start of the server."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        """One request; `path` is one of a few names, never what a client made up."""
        self._requests[method, path, status] += 1
        self._seconds[path] += seconds  # type: ignore[assignment]
        for bound in _BOUNDS:
            if seconds <= bound:
                self._buckets[path, bound] += 1
                break

    def text(self, jobs: Iterable[Job], store: Store) -> str:
        lines: list[str] = []
        _head(lines, "requests_total", "counter", "Requests answered.")
        for (method, path, status), count in sorted(self._requests.items()):
            lines.append(f'{_PREFIX}requests_total{{method="{method}",path="{path}",status="{status}"}} {count}')
        _head(lines, "request_seconds", "histogram", "Time to answer; /schedule waits for all ranks.")
        for path in sorted(self._seconds):
            below = 0
            for bound in _BOUNDS:
                below += self._buckets[path, bound]
                lines.append(f'{_PREFIX}request_seconds_bucket{{path="{path}",le="{bound:g}"}} {below}')
            total = sum(count for (_, at, _), count in self._requests.items() if at == path)
            lines.append(f'{_PREFIX}request_seconds_bucket{{path="{path}",le="+Inf"}} {total}')
            lines.append(f'{_PREFIX}request_seconds_sum{{path="{path}"}} {self._seconds[path]:.6f}')
            lines.append(f'{_PREFIX}request_seconds_count{{path="{path}"}} {total}')
        known = list(jobs)
        _head(lines, "jobs", "gauge", "Jobs by what they do.")
        for phase, count in sorted(Counter(job.phase for job in known).items()):
            lines.append(f'{_PREFIX}jobs{{phase="{phase}"}} {count}')
        for name, kind, help, value in (
            ("ranks", "gauge", "Ranks registered, of all jobs.", sum(len(job.ranks) for job in known)),
            ("rounds", "gauge", "Schedules decided, of all jobs.", sum(job.round + 1 for job in known)),
            ("reports", "gauge", "Reports kept, of all jobs.", sum(job.reports for job in known)),
            ("solve_seconds_total", "counter", "Time spent on frontiers.", sum(job.solve_seconds for job in known)),
            ("commits_total", "counter", "Commits of the store.", store.commits),
            ("commit_seconds_total", "counter", "Time spent in commits.", store.commit_seconds),
        ):
            _head(lines, name, kind, help)
            lines.append(f"{_PREFIX}{name} {value:g}" if isinstance(value, float) else f"{_PREFIX}{name} {value}")
        return "\n".join(lines) + "\n"


def _head(lines: list[str], name: str, kind: str, help: str) -> None:
    lines += [f"# HELP {_PREFIX}{name} {help}", f"# TYPE {_PREFIX}{name} {kind}"]
