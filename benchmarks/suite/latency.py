"""A drain by one child, with 1 ms each way to Redis, through a delaying proxy."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from redis import Redis

from ..environment import Environment, Options
from ..measure import interleaved, ratios, timed
from ..report import Row, of_rounds
from .drain import worker


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(100_000)
    trips: list[float] = []

    def far() -> float:
        with environment.delay(1) as url:
            trips.append(round_trip(url))
            return worker(environment, jobs, 1, url)

    rates = interleaved(options.rounds_or(3), far=far, near=lambda: worker(environment, jobs, 1))
    yield of_rounds("one child, 1 ms each way", rates["far"], "jobs/s", at_least=15_000)
    yield of_rounds("one child, no delay", rates["near"], "jobs/s")
    yield of_rounds("with delay / without", ratios(rates["far"], rates["near"]))
    yield of_rounds("a PING through the proxy", trips, "ms")


def round_trip(url: str) -> float:
    """The median round trip, in milliseconds."""
    with Redis.from_url(url) as redis:
        redis.ping()
        return median(timed(redis.ping) * 1000 for _ in range(50))
