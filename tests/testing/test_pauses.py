"""Pauses in memory hold jobs back until they are resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_redisqueue import Chunk, ChunkItem, JobQueue, Limit, Rate, Task, task
from django_redisqueue.client import registry
from django_redisqueue.testing import capture_jobs, run_inline

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


@task
def plain(n: int) -> None:
    SEEN.append(n)


@pytest.fixture
def of_tenant() -> Iterator[Task]:
    """A task of one test only: with shards, the checks find that its limits have different keys."""
    limits = {"concurrency": Limit(5, key="tenant"), "rate": Rate(2, "1m", burst=2)}
    made = task(fair_by="tenant", **limits)(see_tenant)
    yield made
    del registry._tasks[made.name]


def see_tenant(tenant: str) -> None:
    SEEN.append(tenant)


@task(
    chunk=Chunk(5, by="kind", parameters=("n", "kind")), concurrency=Limit(5, key="n"), fair_by="n"
)
def together(items: list[ChunkItem]) -> None:
    SEEN.append([item.args[0] for item in items])


def test_a_paused_queue_runs_nothing(settings: Any) -> None:
    settings.REDISQUEUE = {"QUEUES": {"default": {}, "low": {}}}
    queue = JobQueue()
    with capture_jobs() as jobs:
        assert not queue.is_paused
        assert (queue.pause(by="ann"), queue.pause()) == (True, False)
        assert queue.is_paused
        plain.enqueue(1)
        job = plain.using(run_after=60).enqueue(2)
        plain.using(queue_name="low").enqueue(3)
        jobs.travel(hours=1)
        jobs.drain()
        assert SEEN == [3]
        job.refresh()
        assert job.status == "queued"
        assert (queue.resume(), queue.resume()) == (True, False)
        assert not queue.is_paused
        jobs.run_due()
    assert SEEN == [3, 1, 2]
    with capture_jobs():
        assert not queue.is_paused


def test_jobs_of_a_paused_queue_can_be_cancelled() -> None:
    with run_inline():
        JobQueue().pause()
        job, other = plain.enqueue(1), plain.enqueue(2)
        job.cancel()
        JobQueue().resume()
    assert SEEN == [2]
    assert (job.status, other.status) == ("cancelled", "completed")


@pytest.mark.one_shard("its limits have different keys, which several shards refuse")
def test_one_share_or_limit_is_paused(of_tenant: Task) -> None:
    queue = JobQueue()
    with run_inline():
        assert queue.pause(share="a", by="ann")
        assert queue.pause(limit=of_tenant, key="b")
        assert not queue.pause(limit=of_tenant.name, key="b")
        assert queue.get_pauses() == [f"limit {of_tenant.name}:b", "share a"]
        for tenant in ("a", "b", "c"):
            of_tenant.enqueue(tenant)
        assert SEEN == ["c"]
        assert not queue.is_paused
        assert queue.resume(share="a")
        assert SEEN == ["c", "a"]
        assert queue.resume(limit=of_tenant, key="b")
        assert SEEN == ["c", "a"]  # its rate does not allow it yet
        assert queue.get_pauses() == []
    assert SEEN == ["c", "a"]


@pytest.mark.one_shard("its limits have different keys, which several shards refuse")
def test_a_rate_is_paused(of_tenant: Task) -> None:
    with run_inline() as jobs:
        JobQueue().pause(limit=of_tenant, key="a")
        JobQueue().pause(limit=of_tenant)
        of_tenant.enqueue("a")
        of_tenant.enqueue("b")
        jobs.travel(hours=1)
        JobQueue().resume(limit=of_tenant)
        assert SEEN == ["b"]


def test_a_paused_job_joins_no_chunk() -> None:
    with capture_jobs() as jobs:
        JobQueue().pause(share=2)
        together.enqueue_many([(1, "k"), (2, "k"), (3, "k")])
        jobs.drain()
        assert SEEN == [[1, 3]]
        JobQueue().resume(share=2)
        jobs.drain()
    assert SEEN == [[1, 3], [2]]
