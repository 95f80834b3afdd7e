"""Limits, rates, shares and pauses in memory: as in Redis, one job after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_redisqueue import (
    Chunk,
    ChunkItem,
    JobQueue,
    Limit,
    Rate,
    RateLimited,
    Task,
    task,
)
from django_redisqueue.client import registry
from django_redisqueue.core.statuses import Status
from django_redisqueue.testing import capture_jobs, run_inline

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


@task(fair_by="tenant")
def share(tenant: str, n: int) -> None:
    SEEN.append(f"{tenant}{n}")


@task
def plain(n: int) -> None:
    SEEN.append(f"p{n}")


@task(rate=Rate(3, "1m"))
def paced(n: int) -> None:
    SEEN.append(n)


@task(rate=Rate(4, "1m", burst=3, key="who"))
def bursts(who: str, n: int) -> None:
    SEEN.append((who, n))


@task(concurrency=Limit(1, key="report"), on_conflict="discard")
def once(report: str) -> None:
    SEEN.append(report)
    SEEN.append(once.enqueue(report).status)


@task(concurrency=Limit(1), on_conflict="cancel_oldest")
def newest(n: int) -> None:
    SEEN.append(n)


def test_shares_take_turns() -> None:
    with capture_jobs() as jobs:
        share.enqueue_many([("a", n) for n in range(4)])
        share.enqueue_many([("b", n) for n in range(2)])
        plain.enqueue_many([(n,) for n in range(2)])
        jobs.drain()
    assert SEEN == ["a0", "b0", "p0", "a1", "b1", "p1", "a2", "a3"]


def test_priority_comes_before_shares() -> None:
    with capture_jobs() as jobs:
        share.enqueue("a", 0)
        share.using(priority=5).enqueue_many([("b", 0), ("b", 1)])
        jobs.drain()
    assert SEEN == ["b0", "b1", "a0"]


def test_turns_count_whatever_the_priority_of_the_jobs() -> None:
    with capture_jobs() as jobs:
        share.enqueue_many([("a", 0), ("b", 0)])
        share.using(priority=5).enqueue("a", 1)
        plain.using(priority=3).enqueue_many([(n,) for n in range(3)])
        jobs.drain()
    assert SEEN == ["a1", "p0", "p1", "p2", "b0", "a0"]


def test_a_requeued_job_joins_the_end_of_its_lane() -> None:
    with capture_jobs() as jobs:
        first, _ = share.enqueue_many([("a", 0), ("a", 1)])
        first.cancel()
        first.requeue()
        jobs.drain()
    assert SEEN == ["a1", "a0"]


def test_weights(settings: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "WEIGHTS": {"a": 2}}
    with capture_jobs() as jobs:
        share.enqueue_many([("a", n) for n in range(4)])
        share.enqueue_many([("b", n) for n in range(4)])
        jobs.drain()
    assert SEEN[:6].count("a0") == 1
    assert sum(name[0] == "a" for name in SEEN[:6]) == 4


def test_a_rate_follows_the_clock() -> None:
    with run_inline() as jobs:
        paced.enqueue_many([(n,) for n in range(5)])
        assert SEEN == [0]
        jobs.travel(seconds=19)
        assert SEEN == [0]
        jobs.travel(seconds=2)
        assert SEEN == [0, 1]
        jobs.travel(minutes=1)
        assert SEEN == [0, 1, 2, 3, 4]


def test_each_key_has_its_own_burst() -> None:
    with run_inline() as jobs:
        bursts.enqueue_many([(who, n) for n in range(4) for who in ("x", "y")])
        assert [(who, n) for n in range(3) for who in ("x", "y")] == SEEN
        jobs.travel(minutes=1)
        assert len(SEEN) == 8


def test_run_due_waits_and_drain_does_not() -> None:
    with capture_jobs() as jobs:
        paced.enqueue_many([(n,) for n in range(3)])
        jobs.run_due()
        assert SEEN == [0]
        jobs.travel(seconds=21)
        jobs.run_due()
        assert SEEN == [0, 1]
        jobs.drain()
        assert SEEN == [0, 1, 2]


def test_discard() -> None:
    with capture_jobs() as jobs:
        first, second, other = once.enqueue("a"), once.enqueue("a"), once.enqueue("b")
        assert [job.status for job in (first, second, other)] == ["queued", "cancelled", "queued"]
        assert jobs.job(second.id).reason == "conflict"
        jobs.drain()
    assert SEEN == ["a", Status.CANCELLED, "b", Status.CANCELLED]


def test_cancel_oldest() -> None:
    with capture_jobs() as jobs:
        newest.enqueue_many([(n,) for n in range(3)])
        jobs.drain()
    assert SEEN == [2]


@task(concurrency=Limit(2), on_conflict="cancel_oldest")
def two_newest(n: int) -> None: ...


def test_a_run_of_a_schedule_has_no_conflict(settings: Any) -> None:
    schedule = {"task": once.name, "every": "10s", "args": ["a"]}
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SCHEDULES": {"often": schedule}}
    with capture_jobs() as jobs:
        jobs.travel(seconds=25)
        statuses = [job.status for job in jobs.assert_enqueued(once)]
    assert len(statuses) > 1
    assert set(statuses) == {"queued"}


def test_cancel_oldest_means_the_next_to_run() -> None:
    with capture_jobs():
        first = two_newest.enqueue(1)
        urgent = two_newest.using(priority=5).enqueue(2)
        third = two_newest.enqueue(3)
        first.refresh()
        urgent.refresh()
    assert [job.status for job in (first, urgent, third)] == ["queued", "cancelled", "queued"]


@task(rate=Rate(600, "1m"), max_attempts=1)
def refused(n: int, retry_after: object) -> None:
    SEEN.append(n)
    if SEEN.count(n) == 1 and n == 1:
        raise RateLimited(retry_after=retry_after)


def test_a_rate_limited_service() -> None:
    with run_inline() as jobs:
        first = refused.enqueue(1, 30)
        second = refused.enqueue(2, 30)
        jobs.travel(seconds=29)
        assert SEEN == [1]
        jobs.travel(seconds=2)
        assert sorted(SEEN) == [1, 1, 2]
        assert [job.status for job in (first, second)] == ["completed", "completed"]


def test_an_invalid_delay() -> None:
    with run_inline():
        job = refused.enqueue(1, "soon")
        assert job.error is not None
        assert "RateLimited(retry_after=...) must be seconds" in job.error.message


@pytest.mark.parametrize("aging", [None, 60])
def test_waiting_counts_as_priority(settings: Any, aging: int | None) -> None:
    settings.REDISQUEUE = {"QUEUES": {"default": {"AGING": aging}, "low": {}}}
    with capture_jobs() as jobs:
        plain.using(priority=-2).enqueue(0)
        share.enqueue("a", 0)
        jobs.travel(minutes=2.5)
        share.enqueue("b", 0)
        plain.using(priority=2).enqueue(1)
        plain.using(priority=1).enqueue(2)
        again = plain.using(priority=2).enqueue(3)
        again.cancel()
        jobs.travel(seconds=1)
        again.requeue()
        plain.using(priority=9, queue_name="low").enqueue(4)
        jobs.drain()
    if aging is None:
        assert SEEN == ["p4", "p1", "p3", "p2", "a0", "b0", "p0"]
    else:
        assert SEEN == ["p4", "a0", "p1", "p3", "p2", "p0", "b0"]


# -- pauses hold jobs back until resumed


@task
def say(n: int) -> None:
    SEEN.append(n)


@pytest.fixture
def of_tenant() -> Iterator[Task]:
    """A task of only one test: with shards, the checks find that its limits have different keys."""
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


def test_a_share_that_was_idle_owes_nothing() -> None:
    with capture_jobs() as jobs:
        share.enqueue("a", 1)
        jobs.drain()
        for tenant, n in (("a", 2), ("a", 3), ("b", 1)):
            share.enqueue(tenant, n)
        jobs.drain()
    assert SEEN == ["a1", "a2", "b1", "a3"]


def test_a_conflict_of_a_job_whose_parents_have_ended() -> None:
    with capture_jobs() as jobs:
        ended = plain.enqueue(0)
        jobs.drain()
        older = newest.enqueue(1)
        waiting = newest.using(after=plain.enqueue(1)).enqueue(2)
        assert (older.status, waiting.status) == ("queued", "waiting")
        newest.using(after=ended).enqueue(3)
        older.refresh()
        assert (older.status, older.reason) == ("cancelled", "conflict")


def test_a_paused_queue_runs_nothing(settings: Any) -> None:
    settings.REDISQUEUE = {"QUEUES": {"default": {}, "low": {}}}
    queue = JobQueue()
    with capture_jobs() as jobs:
        assert not queue.is_paused
        assert (queue.pause(by="ann"), queue.pause()) == (True, False)
        assert queue.is_paused
        say.enqueue(1)
        job = say.using(run_after=60).enqueue(2)
        say.using(queue_name="low").enqueue(3)
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
        job, other = say.enqueue(1), say.enqueue(2)
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
