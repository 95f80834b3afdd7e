"""Chunk tasks in memory: the same calls and the same outcomes as in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_redisqueue import Chunk, ChunkItem, Limit, Rate, task
from django_redisqueue.exceptions import JobFailed
from django_redisqueue.testing import InMemoryQueue, capture_jobs, run_inline
from tests.worker.chunk_tasks import index

CALLS: list[Any] = []


@task(chunk=Chunk(3, wait=5))
def collect(items: list[ChunkItem]) -> None:
    CALLS.append([item.args[0] for item in items])


@task(chunk=Chunk(3), concurrency=Limit(2))
def limited(items: list[ChunkItem]) -> None:
    CALLS.append([item.args[0] for item in items])


@task(chunk=Chunk(3), rate=Rate(2, "1h", burst=2))
def rated(items: list[ChunkItem]) -> None:
    CALLS.append([item.args[0] for item in items])


@task(chunk=Chunk(2))
def refuse(items: list[ChunkItem]) -> None:
    pytest.fail("for the test")


@task(chunk=Chunk(2))
def return_too_few(items: list[ChunkItem]) -> list[int]:
    return [1]


@task(chunk=Chunk(2))
def return_one_bad(items: list[ChunkItem]) -> list[object]:
    return [1, object()]


@task(chunk=Chunk(3), takes_context=True, max_attempts=2)
def pay(context: Any, items: list[ChunkItem]) -> list[str]:
    for item in items:
        context.step(item, "pay", CALLS.append, item.args[0])
    if items[0].attempt == 1:
        raise ConnectionError
    return [context.step_key_for(at, "pay") for at in range(len(items))]


@task(chunk=Chunk(3), takes_context=True)
def misuse(context: Any, items: list[ChunkItem]) -> None:
    match items[0].args[0]:
        case "sleep":
            context.sleep(1)
        case "twice":
            for _ in range(2):
                context.step(0, "s", list)
        case "other":
            context.step(len(items), "s", list)


@pytest.fixture
def jobs() -> Iterator[InMemoryQueue]:
    CALLS.clear()
    with capture_jobs() as captured:
        yield captured


def test_jobs_of_one_key_are_one_call(jobs: InMemoryQueue) -> None:
    for text in ("a", "fail b", "c"):
        for tenant in ("x", "y"):
            index.enqueue(text, tenant)
    ended = jobs.drain()
    together = ["a", "fail b", "c"]
    assert [job.status for job in ended] == ["completed", "failed", "completed"] * 2
    assert {tuple(job.result) for job in ended if job.result} == {tuple(together)}
    assert {job.error.message for job in ended if job.error} == {"not this one"}


def test_jobs_are_retried_after_an_exception_and_a_retry(jobs: InMemoryQueue) -> None:
    all_of_them = [index.enqueue(text, tenant=1) for text in ("a", "raise b")]
    one = index.enqueue("retry c", tenant=2)
    jobs.drain()
    assert [job.attempts for job in all_of_them] == [1, 1]
    assert [job.status for job in all_of_them] == ["completed", "completed"]
    assert (one.status, one.attempts) == ("failed", 2)


def test_a_drain_fills_chunks(jobs: InMemoryQueue) -> None:
    collect.enqueue_many([(n,) for n in range(7)])
    jobs.drain()
    assert CALLS == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_chunk_that_is_not_full_waits_for_the_clock(jobs: InMemoryQueue) -> None:
    collect.enqueue(1)
    jobs.travel(seconds=3)
    collect.enqueue(2)
    jobs.run_due()
    assert CALLS == []
    jobs.travel(seconds=2)
    jobs.run_due()
    assert CALLS == [[1, 2]]
    collect.enqueue_many([(3,), (4,), (5,)])
    jobs.run_due()
    assert CALLS[1:] == [[3, 4, 5]]


def test_each_job_remembers_its_steps(jobs: InMemoryQueue) -> None:
    paid = [pay.enqueue(n) for n in range(3)]
    jobs.drain()
    assert CALLS == [0, 1, 2]
    assert [job.result for job in paid] == [f"{job.id}:pay" for job in paid]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("sleep", "the context of a chunk has no 'sleep', only items, fail, retry, step and"),
        ("twice", "the step 's' occurs twice in one run of"),
        ("other", "a chunk of 1 has the items 0 to 0, not 1"),
    ],
)
def test_what_a_chunk_cannot_do(jobs: InMemoryQueue, how: str, words: str) -> None:
    job = misuse.enqueue(how)
    jobs.drain()
    assert job.error is not None
    assert words in job.error.message


def test_inline_each_job_is_a_separate_chunk() -> None:
    CALLS.clear()
    with run_inline():
        collect.enqueue(1)
        collect.enqueue(2)
    assert CALLS == [[1], [2]]


def test_exceptions_meant_for_the_test_reach_it(jobs: InMemoryQueue) -> None:
    refuse.enqueue()
    with pytest.raises(pytest.fail.Exception, match="for the test"):
        jobs.drain()


def test_an_inline_failure_raises() -> None:
    with run_inline(raises=True), pytest.raises(JobFailed, match="not this one"):
        index.enqueue("fail a", tenant=1)


def test_results_that_do_not_fit(jobs: InMemoryQueue) -> None:
    few = [return_too_few.enqueue(n) for n in range(2)]
    good, bad = return_one_bad.enqueue(1), return_one_bad.enqueue(2)
    jobs.drain()
    for job in few:
        assert job.error is not None
        assert (job.status, job.error.reason) == ("failed", "result")
        assert "a list with one result for each of its 2 items" in job.error.message
    assert (good.status, good.result, bad.status) == ("completed", 1, "failed")
    assert bad.error is not None
    assert bad.error.reason == "result"


def test_limits_and_rates_hold_within_a_chunk(jobs: InMemoryQueue) -> None:
    limited.enqueue_many([(n,) for n in range(4)])
    jobs.run_due()
    assert CALLS == [[0, 1], [2, 3]]
    CALLS.clear()
    rated.enqueue_many([(n,) for n in range(3)])
    jobs.run_due()
    assert CALLS == [[0, 1]]
    jobs.travel(hours=2)
    jobs.run_due()
    assert CALLS == [[0, 1], [2]]
