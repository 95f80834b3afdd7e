"""Workflows of ten no-op jobs each, a fan-out and a fan-in: pushed, and run to the end.

They are pushed first, by ``push_many``, and then run by two children. The rates are of jobs: pushed
by one process, and from the first completion to the last. Memory is the peak of `used_memory` over
both, the event stream (which has a cap of its own) included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from django_redisqueue import Workflow, push_many

from ..environment import Environment
from ..measure import watched_rate
from ..options import Options
from ..project import tasks
from ..report import Row

MIDDLE = 8
SIZE = MIDDLE + 2


def run(environment: Environment, options: Options) -> Iterator[Row]:
    largest = options.jobs_or(1_000_000 if options.full else 100_000)
    yield Row("pushed one at a time", one_at_a_time(environment, 10_000), "jobs/s")
    for jobs in (10_000, largest):
        yield from measure(environment, jobs)


def measure(environment: Environment, jobs: int) -> Iterator[Row]:
    environment.empty()
    before = memory(environment, "used_memory")
    begun = time.perf_counter()
    push_many(flow() for _ in range(jobs // SIZE))
    pushed = time.perf_counter() - begun
    waiting = memory(environment, "used_memory")
    with environment.worker(2):
        rate = watched_rate(environment.completed, jobs)
    seconds = pushed + jobs / rate
    peak = memory(environment, "used_memory_peak") if jobs > 10_000 else 0
    name = f"{jobs:,} jobs"
    yield Row(f"{name}: pushed", jobs / pushed, "jobs/s")
    yield Row(f"{name}: run", rate, "jobs/s")
    yield Row(f"{name}: in all", seconds, "s", **({"at_most": 120} if jobs == 1_000_000 else {}))
    yield Row(f"{name}: workflows", jobs / SIZE / seconds, "a second")
    yield Row(f"{name}: memory when pushed", (waiting - before) / jobs, "bytes a job")
    if peak:
        limit = {"at_most": 512} if jobs == 1_000_000 else {}
        yield Row(f"{name}: memory at the most", peak / 2**20, "MiB", **limit)


def one_at_a_time(environment: Environment, jobs: int) -> float:
    environment.empty()
    begun = time.perf_counter()
    for _ in range(jobs // SIZE):
        flow().push()
    return jobs / (time.perf_counter() - begun)


def flow() -> Workflow:
    made = Workflow()
    first = made.add(tasks.noop, 0)
    middle = [made.add(tasks.noop, n, after=first) for n in range(MIDDLE)]
    made.add(tasks.noop, 0, after=middle)
    return made


def memory(environment: Environment, what: str) -> int:
    found: int = environment.redis.info("memory")[what]
    return found
