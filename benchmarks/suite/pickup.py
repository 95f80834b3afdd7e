"""The time from the call of enqueue until an idle worker starts the job; how late due jobs start.

The task records its start by the enqueueing process's clock, because both run on one machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

from ..environment import Environment, Options
from ..measure import interleaved, percentile, until
from ..project import huey_app, tasks
from ..report import Row, of_rounds

PAUSE = 0.01  # s between two jobs, in which the worker becomes idle
PROCESSES = 2


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(500)
    waits = interleaved(
        options.rounds_or(3),
        ours=lambda: worker(environment, [0.0] * jobs),
        huey=lambda: huey(environment, jobs),
    )
    yield percentiles("pick-up, p50", waits["ours"], 0.5, at_most=1)
    yield percentiles("pick-up, p99", waits["ours"], 0.99, at_most=5)
    yield percentiles("Huey, p50", waits["huey"], 0.5)
    yield percentiles("Huey, p99", waits["huey"], 0.99)
    chance = random.Random(7)
    late = worker(environment, [chance.randint(200, 1000) / 1000 for _ in range(jobs)])
    yield Row("due job late, p50", percentile(late, 0.5), "ms")
    yield Row("due job late, p99", percentile(late, 0.99), "ms")
    yield Row("due job late, max", max(late), "ms", at_most=50)


def percentiles(what: str, found: list[list[float]], share: float, **target: float) -> Row:
    return of_rounds(what, [percentile(waits, share) for waits in found], "ms", **target)


def worker(environment: Environment, delays: Sequence[float]) -> list[float]:
    """One job for each delay, in seconds; 0 is due at once."""
    environment.empty()
    with environment.worker(PROCESSES, ready=True):
        made = []
        for delay in delays:
            time.sleep(PAUSE)
            called = time.time()
            task = tasks.stamp.using(run_after=delay) if delay else tasks.stamp
            made.append((called + delay, task.enqueue()))
        until(lambda: environment.completed() == len(delays), "all jobs")
    return milliseconds([(begun, job.result) for begun, job in made])


def huey(environment: Environment, jobs: int) -> list[float]:
    environment.empty()
    with environment.huey(ready=True):
        made = []
        for _ in range(jobs):
            time.sleep(PAUSE)
            made.append((time.time(), huey_app.stamp()))
        return milliseconds([(begun, result.get(blocking=True)) for begun, result in made])


def milliseconds(spans: Sequence[tuple[float, float]]) -> list[float]:
    return [(end - begun) * 1000 for begun, end in spans]
