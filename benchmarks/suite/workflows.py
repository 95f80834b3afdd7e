"""Workflows of ten no-op jobs each, a fan-out and a fan-in: pushed, and run to the end.

``push_many`` pushes them first; then two children run them. Rates are in jobs: pushed by one
process, and completed between the first completion and the last. Memory is the peak of
``used_memory`` over both phases, including the event stream, which has its own cap. With the
mirror, the bridge may still be working when the last job has ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from django_redisqueue import Workflow, push_many

from ..environment import Environment, Options
from ..measure import watched_rate
from ..project import tasks
from ..report import Row

MIDDLE = 8
SIZE = MIDDLE + 2
HALF_A_GB = 5e8 / 2**20  # MiB


def run(environment: Environment, options: Options) -> Iterator[Row]:
    some = options.jobs_or(100_000)
    yield Row("pushed one at a time", one_at_a_time(environment, 10_000), "jobs/s")
    yield from measure(environment, 10_000)
    yield from measure(environment, some)
    yield from measure(environment, some, mirror=True)
    if options.full:
        yield from measure(environment, 1_000_000, seconds=120, mebibytes=HALF_A_GB)


def measure(
    environment: Environment,
    jobs: int,
    *,
    mirror: bool = False,
    seconds: float | None = None,
    mebibytes: float | None = None,
) -> Iterator[Row]:
    """Push and run workflows. ``seconds`` and ``mebibytes`` are the targets, if there are any."""
    environment.empty()
    environment.new_database()
    before = environment.memory()
    begun = time.perf_counter()
    push_many(flow() for _ in range(jobs // SIZE))
    pushed = time.perf_counter() - begun
    waiting = environment.memory()
    with environment.worker(2, mirror=mirror):
        rate = watched_rate(environment.completed, jobs)
    total = pushed + jobs / rate
    name = f"{jobs:,} jobs, mirrored" if mirror else f"{jobs:,} jobs"
    yield Row(f"{name}: pushed", jobs / pushed, "jobs/s")
    yield Row(f"{name}: run", rate, "jobs/s")
    yield Row(f"{name}: in all", total, "s", at_most=seconds)
    yield Row(f"{name}: workflows", jobs / SIZE / total, "a second")
    if not mirror:
        yield Row(f"{name}: memory when pushed", (waiting - before) / jobs, "bytes a job")
        peak = environment.memory("used_memory_peak") / 2**20
        yield Row(f"{name}: memory at the most", peak, "MiB", at_most=mebibytes)


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
