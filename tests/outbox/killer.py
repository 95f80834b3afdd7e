"""Makes a worker's child die by SIGKILL after the commit of an exactly_once job: once before it
sends what the job enqueued, and once before it reports. It records that in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from django_redisqueue.client.transport import RedisTransport
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.worker.child import executor

from .tasks import die_once

run_once = executor.run_once


def run_once_and_die(job_id: str, alias: str, work: Callable[[], str]) -> str:
    result = run_once(job_id, alias, work)
    die_once(os.environ["REDISQUEUE_TEST_DEATHS"], job_id)
    return result


executor.run_once = run_once_and_die

enqueue = RedisTransport.enqueue


def enqueue_or_die(transport: RedisTransport, jobs: Sequence[NewJob]) -> None:
    die_once(os.environ["REDISQUEUE_TEST_DEATHS"], f"send-{jobs[0].id}")
    enqueue(transport, jobs)


RedisTransport.enqueue = enqueue_or_die  # type: ignore[method-assign]
