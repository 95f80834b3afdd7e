"""Queued no-op jobs with a concurrency key, compared with jobs without one.

As in ``drain``, with one child: all jobs in one lane, in 1,000 lanes, and each in its own lane.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..environment import Environment, Options
from ..measure import interleaved, ratios, watched_rate
from ..project import tasks
from ..report import Row, of_rounds
from .drain import CHUNK
from .drain import worker as without_limits


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(100_000)
    rates = interleaved(
        options.rounds_or(3),
        plain=lambda: without_limits(environment, jobs, 1),
        one=lambda: with_lanes(environment, jobs, 1),
        thousand=lambda: with_lanes(environment, jobs, 1000),
        each=lambda: with_lanes(environment, jobs, jobs),
    )
    yield of_rounds("without limits", rates["plain"], "jobs/s")
    for name, label in (("one", "one lane"), ("thousand", "1,000 lanes"), ("each", "a lane each")):
        yield of_rounds(f"{label} / without", ratios(rates[name], rates["plain"]), at_least=0.5)
    yield of_rounds("a lane each / 1,000", ratios(rates["each"], rates["thousand"]), at_least=0.9)


def with_lanes(environment: Environment, jobs: int, lanes: int) -> float:
    environment.empty()
    for start in range(0, jobs, CHUNK):
        some = range(start, min(start + CHUNK, jobs))
        tasks.limited.enqueue_many([(n % lanes,) for n in some])
    with environment.worker(1):
        return watched_rate(environment.completed, jobs)
