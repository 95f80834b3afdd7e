"""One job of 2 s in front of 1,000 short ones, on two children: when the short ones are done.

The children have run short jobs before, so they claim the slow job in a batch with short ones
behind it. The time is from the claim of the slow job to the completion of the last short one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from django_redisqueue import Job, JobQueue

from ..environment import Environment, Options
from ..measure import interleaved, timed, until
from ..project import tasks
from ..report import Row, of_rounds

WARM_UP = 5000


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(1000)
    exponent = two_seconds()
    found = interleaved(
        options.rounds_or(5),
        sleeping=lambda: short_done(environment, lambda: tasks.sleep.enqueue(2.0), jobs),
        holding=lambda: short_done(environment, lambda: tasks.hold_gil.enqueue(exponent), jobs),
    )
    yield of_rounds("behind a job that sleeps", found["sleeping"], "s", at_most=0.5)
    yield of_rounds("behind a job that holds the GIL", found["holding"], "s", at_most=0.5)
    yield Row("the slowest round of all", max(map(max, found.values())), "s", at_most=0.5)


def short_done(environment: Environment, slow: Callable[[], Job], jobs: int) -> float:
    environment.empty()
    queue = JobQueue()
    with environment.worker(2, ready=True):
        tasks.noop.enqueue_many([(n,) for n in range(WARM_UP)])
        until(lambda: environment.completed() == WARM_UP, "the short jobs before")
        queue.pause()
        first = slow()
        short = tasks.noop.enqueue_many([(n,) for n in range(jobs)])
        queue.resume()
        done = environment.span_when_done(short, WARM_UP + jobs)
        until(lambda: environment.completed() == WARM_UP + jobs + 1, "the slow job")
        return done.ended - environment.span([first]).begun


def two_seconds() -> int:
    """An exponent whose power of three takes two seconds to write in binary on this machine."""
    exponent, seconds = 100_000, 0.0
    while seconds < 0.5:
        exponent *= 2
        seconds = timed(partial(tasks.hold_gil.call, exponent))
    return int(exponent * (2 / seconds) ** (1 / 1.585))  # Karatsuba: n ** log2(3)
