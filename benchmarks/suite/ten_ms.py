"""Jobs that sleep for 10 ms on 8 children, compared with the ideal of 800 per second.

A sleep of 10 ms takes a little longer on any machine, so a bare loop of 8 threads that only sleep
is measured as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ..environment import Environment, Options
from ..measure import interleaved
from ..project import tasks
from ..report import Row, of_rounds

CHILDREN, SECONDS = 8, 0.01
IDEAL = CHILDREN / SECONDS


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(4000)
    rates = interleaved(
        options.rounds_or(3),
        ours=lambda: worker(environment, jobs),
        bare=lambda: bare(jobs),
    )
    yield of_rounds("8 children", rates["ours"], "jobs/s")
    yield of_rounds("8 threads that only sleep", rates["bare"], "sleeps/s")
    yield of_rounds("of the ideal 800/s", [r / IDEAL for r in rates["ours"]], at_least=0.95)
    yield of_rounds("8 that only sleep, of the ideal", [r / IDEAL for r in rates["bare"]])


def worker(environment: Environment, jobs: int) -> float:
    """Jobs per second from the first claim to the last completion; the children start before."""
    environment.empty()
    with environment.worker(CHILDREN, ready=True):
        made = tasks.sleep.enqueue_many([(SECONDS,)] * jobs)
        return jobs / environment.span_when_done(made, jobs).seconds


def bare(sleeps: int) -> float:
    begun = time.perf_counter()
    with ThreadPoolExecutor(CHILDREN) as threads:
        threads.map(loop, [sleeps // CHILDREN] * CHILDREN)
    return sleeps / (time.perf_counter() - begun)


def loop(sleeps: int) -> None:
    for _ in range(sleeps):
        time.sleep(SECONDS)
