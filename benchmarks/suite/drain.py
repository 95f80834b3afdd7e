"""Queued no-op jobs, from the first completion to the last.

The queue is filled first, and then the worker is started. Jobs completed by the first look that
sees any do not count (``watched_rate``), so that start-up is excluded for all alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..environment import Environment, Options
from ..measure import interleaved, ratios, watched_rate
from ..project import huey_app, tasks
from ..report import Row, of_rounds

CHUNK = 10_000


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(100_000)
    rates = interleaved(
        options.rounds_or(3),
        one=lambda: worker(environment, jobs, 1),
        huey=lambda: huey(environment, jobs // 5),
        two=lambda: worker(environment, jobs, 2),
        bare=lambda: bare(environment, jobs // 2),
    )
    yield of_rounds("one child", rates["one"], "jobs/s", at_least=30_000)
    yield of_rounds("two children", rates["two"], "jobs/s")
    yield of_rounds("Huey, one thread", rates["huey"], "jobs/s")
    yield of_rounds("bare BRPOP loop", rates["bare"], "pops/s")
    yield of_rounds("one child / Huey", ratios(rates["one"], rates["huey"]), at_least=7)
    yield of_rounds("one child / bare loop", ratios(rates["one"], rates["bare"]))
    yield of_rounds("two children / one", ratios(rates["two"], rates["one"]), at_least=1.3)


def fill(jobs: int) -> None:
    for start in range(0, jobs, CHUNK):
        tasks.noop.enqueue_many([(n,) for n in range(start, min(start + CHUNK, jobs))])


def worker(environment: Environment, jobs: int, processes: int, url: str = "") -> float:
    environment.empty()
    fill(jobs)
    with environment.worker(processes, url=url):
        return watched_rate(environment.completed, jobs)


def huey(environment: Environment, jobs: int) -> float:
    environment.empty()
    for n in range(jobs):
        huey_app.noop(n)
    with environment.huey():
        return watched_rate(lambda: jobs - int(environment.redis.llen(huey_app.QUEUE_KEY)), jobs)


def bare(environment: Environment, pops: int) -> float:
    environment.empty()
    redis = environment.redis
    pipeline = redis.pipeline(transaction=False)
    for n in range(pops):
        pipeline.lpush("bare", str(n))
    pipeline.lpush("bare", "stop")
    pipeline.execute()
    with environment.popping("bare", "stop"):
        return watched_rate(lambda: pops + 1 - int(redis.llen("bare")), pops + 1)
