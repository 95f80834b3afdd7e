"""Milliseconds (p95) of every page of the dashboard, with a million records on SQLite.

Redis also holds 100,000 failed jobs, 10,000 gathers and 1,000 workers of ten processes. Django's
test client, in its own process, requests one page at a time, after three requests to warm up. The
time is from the request to the last byte of HTML, with session, login and templates, but without a
web server.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..environment import Environment, Options, python
from ..measure import percentile
from ..processes import line_of, running
from ..report import Row

FAILED, WORKERS = 100_000, 1000
TARGET = 300  # ms


def run(environment: Environment, options: Options) -> Iterator[Row]:
    environment.new_database()
    site = {"DJANGO_SETTINGS_MODULE": "benchmarks.project.site"}
    counts = map(str, (options.jobs_or(1_000_000), FAILED, WORKERS))
    environment.migrate(**site)
    log = environment.folder / "visits.log"
    with running(python("-m", "benchmarks.visits", *counts), log, site) as process:
        process.wait()
    found: dict[str, list[float]] = line_of(log)  # type: ignore[assignment]
    for name, times in found.items():
        yield Row(name, percentile(times, 0.95), "ms", at_most=TARGET, rounds=tuple(times))
