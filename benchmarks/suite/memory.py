"""Redis memory of a queued and of a completed job, without the event stream.

It is measured as the growth of ``used_memory``, minus the MEMORY USAGE of the stream (with every
entry counted), because the stream has its own cap. The payload is counted as stored: the JSON of
all arguments.
"""

from __future__ import annotations

from collections.abc import Iterator

from django_redisqueue.broker.keys import Keys
from django_redisqueue.core.codec import encode_payload

from ..environment import Environment, Options
from ..measure import until
from ..project import huey_app, tasks
from ..report import Row


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(100_000)
    for size, limit in ((20, 500), (200, 800)):
        text = text_of(size)
        before = start(environment)
        tasks.noop.enqueue_many([(text,)] * jobs)
        yield Row(
            f"queued, payload of {size} bytes", used(environment, before) / jobs, "bytes a job",
            at_most=limit,
        )  # fmt: skip
        yield Row("  and in the stream", stream(environment) / jobs, "bytes a job")
        with environment.worker(1):
            until(lambda: environment.completed() == jobs, "all jobs", 120)
        done = used(environment, before) / jobs
        yield Row(f"completed, payload of {size} bytes", done, "bytes a job")
        before = start(environment)
        for _ in range(jobs // 10):
            huey_app.noop(text)
        queued = used(environment, before) * 10 / jobs
        yield Row(f"Huey, queued, the same argument of {len(text)}", queued, "bytes a job")


def text_of(size: int) -> str:
    """A string that makes the payload this many bytes long."""
    empty = len(encode_payload(("",), {}, 1000, "noop"))
    return "x" * (size - empty)


def start(environment: Environment) -> int:
    """Empty Redis, and return the memory that it then uses."""
    environment.empty()
    return environment.memory()


def used(environment: Environment, before: int) -> int:
    return environment.memory() - before - stream(environment)


def stream(environment: Environment) -> int:
    return int(environment.redis.memory_usage(Keys().events, samples=0) or 0)
