"""Verbs over many jobs, which proceed in small steps: how long other clients' PINGs wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django_redisqueue import JobQueue

from ..environment import Environment, Options
from ..measure import timed, until
from ..project import tasks
from ..report import Row
from .drain import fill


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(100_000)
    queue = JobQueue()
    environment.empty()
    failed = jobs // 10
    tasks.fail.enqueue_many([()] * failed)
    with environment.worker(2):
        until(lambda: queue.get_stats()["failed"] == failed, "all jobs failed", 120)
    yield from measured(environment, f"requeue of {failed:,}", queue.requeue_all)

    environment.empty()
    fill(jobs)
    with environment.worker(2):
        until(lambda: environment.completed() == jobs, "all jobs", 120)
    yield from measured(
        environment, f"clear of {jobs:,} completed", lambda: queue.clear("completed")
    )

    environment.empty()
    fill(jobs)
    yield from measured(environment, f"clear of {jobs:,} queued", lambda: queue.clear("queued"))


def measured(environment: Environment, what: str, verb: Callable[[], int]) -> Iterator[Row]:
    done = 0

    def act() -> None:
        nonlocal done
        done = verb()

    with environment.pinging() as ping:
        seconds = timed(act)
    yield Row(what, done / seconds, "jobs/s")
    yield Row(f"{what}: PING p50", ping["p50"], "ms")
    yield Row(f"{what}: PING p99", ping["p99"], "ms", at_most=3)
    yield Row(f"{what}: PING max", ping["max"], "ms")
