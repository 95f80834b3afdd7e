"""Redis goes back to a time before the jobs of an outbox existed: their rows are still there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from django_redisqueue import JobQueue
from django_redisqueue.models import JobEvent, JobRecord, OutboxJob
from tests.support.servers import RedisServer
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually, holds_for

from .conftest import OutboxHarness


@pytest.fixture
def harness(
    fresh_server: Callable[..., RedisServer], tmp_path: Path, settings: Any
) -> Iterator[WorkerHarness]:
    """A harness whose Redis keeps only what was saved by ``save``, like one that crashes before its
    next fsync."""
    with ExitStack() as stack:
        yield WorkerHarness(fresh_server(appendonly=False), tmp_path, settings, stack)


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
@pytest.mark.parametrize("outbox_harness", ["sqlite"], indirect=True)
def test_every_job_that_redis_has_lost_runs_once(outbox_harness: OutboxHarness) -> None:
    harness = outbox_harness.harness
    modules = ["tests.worker.tasks", "tests.outbox.late"]
    harness.configure(OUTBOX=True, MIRROR=True, TASK_MODULES=modules)
    queue = JobQueue()
    queue.pause()
    harness.worker("--processes", "1").wait_until_up(1)
    with transaction.atomic():
        tasks.run.enqueue(harness.book, "before")
    eventually(lambda: JobRecord.objects.count() == 1, why=harness.report)
    harness.redis.save()
    names = [f"job{n}" for n in range(20)]
    with transaction.atomic():
        tasks.run.enqueue_many([(harness.book, name) for name in names])
    eventually(lambda: JobRecord.objects.count() == 21, why=harness.report)
    eventually(lambda: not OutboxJob.objects.filter(relayed_at=None).exists(), why=harness.report)
    harness.server.kill()
    harness.server.start()
    eventually(lambda: queue.get_stats()["queued"] == 21, why=harness.report)
    queue.resume()
    harness.until_done(21)
    holds_for(lambda: harness.runs() == dict.fromkeys(["before", *names], 1), 1)
    completed = JobRecord.objects.filter(status="completed")
    eventually(lambda: completed.count() == 21, why=harness.report)
    assert not JobEvent.objects.filter(status="failed").exists()  # no job was declared lost
