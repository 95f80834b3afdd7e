"""Tasks whose steps write rows, and a child that dies between their commit and their report."""

from __future__ import annotations

import os
from typing import Any

from django_redisqueue import Backoff, task
from django_redisqueue.broker.replies import ClaimedJob
from django_redisqueue.worker.child.job_redis import JobRedis
from tests.app.tasks import bump

from .tasks import die_once

save = JobRedis.save


def die_and_save(steps: JobRedis, job: ClaimedJob, field: str, value: str) -> int:
    folder = os.environ.get("REDISQUEUE_TEST_DEATHS")
    if folder:
        die_once(folder, f"{job.id}-{field}")
    return save(steps, job, field, value)


JobRedis.save = die_and_save  # type: ignore[method-assign]


@task(takes_context=True)
def atomic_steps(context: Any, name: str) -> list[int]:
    return [context.step(f"{n}", bump, f"{name}-{n}", atomic=True) for n in range(2)]


@task(takes_context=True, exactly_once=True)
def once_with_steps(context: Any, name: str) -> list[int]:
    done = [context.step(f"{n}", bump, f"{name}-{n}") for n in range(2)]
    return [*done, bump(f"{name}-last")]


@task(takes_context=True, exactly_once=True, max_attempts=2, backoff=Backoff(base=0, jitter=0))
def once_and_again(context: Any, name: str) -> int:
    """Its first run raises after a step and another row; only that row is rolled back."""
    value = context.step("first", bump, name)
    bump(f"{name}-second")
    if context.attempt == 1:
        raise ConnectionError("the first run")
    return int(value)
