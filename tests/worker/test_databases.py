"""Database connections between jobs, on a real PostgreSQL that cuts them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app import tasks as app_tasks
from tests.postgres import PostgresServer

from . import tasks
from .processes import eventually
from .stage import Stage


@pytest.fixture
def name(stage: Stage, postgres: PostgresServer) -> Iterator[str]:
    """The name of the database that the stage's workers use; they keep their connections."""
    entry: dict[str, Any] = {**postgres.new_database(), "CONN_MAX_AGE": None}
    stage.environment["REDISQUEUE_TEST_DATABASES"] = json.dumps({"default": entry})
    yield entry["NAME"]
    postgres.drop(entry)


def test_a_connection_that_was_cut_between_two_jobs_is_replaced(
    stage: Stage, postgres: PostgresServer, name: str
) -> None:
    worker = stage.worker("--processes", "1").wait_until_up(2)
    child, seen = worker.children[0], set()
    for _ in range(5):
        job = stage.ended(tasks.backend.enqueue())
        assert (job.status, job.attempts) == ("completed", 0), stage.report()
        seen.add(job.result)
        assert postgres.terminate(name) >= 1
        alive = f"SELECT 1 FROM pg_stat_activity WHERE pid = {job.result}"
        eventually(lambda alive=alive: not postgres.execute(alive))
    assert len(seen) == 5
    assert child in worker.children


def test_a_connection_that_is_whole_is_kept(
    stage: Stage, postgres: PostgresServer, name: str
) -> None:
    stage.worker("--processes", "1")
    assert len({stage.ended(tasks.backend.enqueue()).result for _ in range(3)}) == 1


def test_a_job_leaves_alone_the_connections_of_other_threads(
    stage: Stage, database: object
) -> None:
    """Those of async jobs that still run, and of threads that a job has started."""
    worker = stage.worker("--processes", "1").wait_until_up(2)
    child = worker.children[0]
    others = [tasks.async_orm.enqueue(1.0) for _ in range(3)]
    for job in others:
        stage.running(job)
    between = [app_tasks.count.enqueue("a"), tasks.threads_orm.enqueue(2)]
    between += [app_tasks.count.enqueue("b"), tasks.threads_orm.enqueue(2)]
    for job in between + others:
        stage.ended(job)
        assert (job.status, job.recoveries) == ("completed", 0), stage.report()
    assert child in worker.children
