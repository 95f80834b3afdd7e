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
from tests.worker.processes import eventually, holds_for
from tests.worker.stage import Stage

from .conftest import Play


@pytest.fixture
def stage(
    fresh_server: Callable[..., RedisServer], tmp_path: Path, settings: Any
) -> Iterator[Stage]:
    """A stage whose Redis keeps only what was saved by ``save``, like one that crashes before its
    next fsync."""
    with ExitStack() as stack:
        yield Stage(fresh_server(appendonly=False), tmp_path, settings, stack)


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
@pytest.mark.parametrize("play", ["sqlite"], indirect=True)
def test_every_job_that_redis_has_lost_runs_once(play: Play) -> None:
    stage = play.stage
    modules = ["tests.worker.tasks", "tests.outbox.late"]
    stage.configure(OUTBOX=True, MIRROR=True, TASK_MODULES=modules)
    queue = JobQueue()
    queue.pause()
    stage.worker("--processes", "1").wait_until_up(1)
    with transaction.atomic():
        tasks.run.enqueue(stage.book, "before")
    eventually(lambda: JobRecord.objects.count() == 1, why=stage.report)
    stage.redis.save()
    names = [f"job{n}" for n in range(20)]
    with transaction.atomic():
        tasks.run.enqueue_many([(stage.book, name) for name in names])
    eventually(lambda: JobRecord.objects.count() == 21, why=stage.report)
    eventually(lambda: not OutboxJob.objects.filter(relayed_at=None).exists(), why=stage.report)
    stage.server.kill()
    stage.server.start()
    eventually(lambda: queue.get_stats()["queued"] == 21, why=stage.report)
    queue.resume()
    stage.until_done(21)
    holds_for(lambda: stage.runs() == dict.fromkeys(["before", *names], 1), 1)
    completed = JobRecord.objects.filter(status="completed")
    eventually(lambda: completed.count() == 21, why=stage.report)
    assert not JobEvent.objects.filter(status="failed").exists()  # no job was declared lost
