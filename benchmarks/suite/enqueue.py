"""Enqueueing from one process: one job at a time, against Huey and a bare LPUSH; many at once."""

from __future__ import annotations

from collections.abc import Iterator

from ..environment import Environment, Options
from ..measure import interleaved, rate, ratios, timed
from ..project import huey_app, tasks
from ..report import Row, of_rounds

AT_ONCE = 100_000


def run(environment: Environment, options: Options) -> Iterator[Row]:
    calls = options.jobs_or(3_000)
    rounds = options.rounds_or(9)
    redis = environment.redis
    environment.empty()
    rates = interleaved(
        rounds,
        ours=lambda: rate(tasks.noop.enqueue, calls),
        huey=lambda: rate(huey_app.noop, calls),
        bare=lambda: rate(lambda n: redis.lpush("bare", n), calls),
    )
    yield of_rounds("enqueue, one at a time", rates["ours"], "jobs/s")
    yield of_rounds("Huey", rates["huey"], "jobs/s")
    yield of_rounds("bare LPUSH", rates["bare"], "calls/s")
    yield of_rounds("enqueue / Huey", ratios(rates["ours"], rates["huey"]), at_least=1)
    yield from many(environment, min(rounds, 5))


def many(environment: Environment, rounds: int) -> Iterator[Row]:
    """Enqueue 100,000 jobs at once, while another client sends PINGs."""
    calls = [(n,) for n in range(AT_ONCE)]

    def once() -> tuple[float, dict[str, float]]:
        environment.empty()
        with environment.pinging() as ping:
            rate = AT_ONCE / timed(lambda: tasks.noop.enqueue_many(calls))
        return rate, ping

    rates, waits = zip(*(once() for _ in range(rounds)), strict=True)
    yield of_rounds("enqueue_many of 100,000", rates, "jobs/s", at_least=60_000)
    yield of_rounds("PING meanwhile, p50", [wait["p50"] for wait in waits], "ms")
    yield of_rounds("PING meanwhile, p99", [wait["p99"] for wait in waits], "ms", at_most=3)
