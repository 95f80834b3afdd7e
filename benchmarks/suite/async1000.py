"""1,000 async jobs of 100 ms at once on one child, from the first claim to the last completion.

In one case they only sleep; in the other, each also queries the database (SQLite). Every round has
a new child, so the start of its event loop is included.
"""

from __future__ import annotations

from collections.abc import Iterator

from django_redisqueue import Job, Task

from ..environment import Environment, Options
from ..measure import interleaved
from ..project import tasks
from ..report import Row, of_rounds

SECONDS = 0.1
DATABASE_CONNECTIONS = 10  # the default


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(1000)
    environment.migrate()
    found = interleaved(
        options.rounds_or(5),
        sleep=lambda: drain(environment, tasks.async_sleep, jobs),
        query=lambda: drain(environment, tasks.async_query, jobs),
    )
    times = {name: [seconds for seconds, _ in rounds] for name, rounds in found.items()}
    peak = max(job.result for _, made in found["query"] for job in made)
    yield of_rounds("1,000 that sleep 100 ms", times["sleep"], "s", at_most=0.5)
    yield of_rounds("1,000 that sleep and query the database", times["query"], "s", at_most=5)
    yield Row("database connections at the same time", peak, at_most=DATABASE_CONNECTIONS)


def drain(environment: Environment, task: Task, jobs: int) -> tuple[float, list[Job]]:
    environment.empty()
    with environment.worker(1, "--async-concurrency", str(jobs), ready=True):
        made = task.enqueue_many([(SECONDS,)] * jobs)
        return environment.span_when_done(made, jobs).seconds, made
