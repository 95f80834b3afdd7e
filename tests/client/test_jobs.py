"""A job's handle: refreshing it, waiting for its end, cancelling and requeueing it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.utils.asyncio import async_unsafe
from redis import Redis

from django_redisqueue import Job, JobQueue, get_job
from django_redisqueue.client import jobs as client_jobs
from django_redisqueue.client import transport as client_transport
from django_redisqueue.core.codec import encode_stored
from django_redisqueue.core.job_data import JobError, Progress
from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import (
    InvalidOption,
    JobFailed,
    JobNotFound,
    WaitTimeout,
    WrongState,
)
from tests.app import tasks
from tests.support.stopwatch import Stopwatch

from ..support.manual_worker import ManualWorker
from ..worker.processes import eventually

UNKNOWN = "job_1_aaaaaaaaaa_0"


@contextmanager
def at_once(act: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread while the block waits for it."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def once_watched(redis: Redis, job: Job, act: Callable[[], object]) -> Callable[[], None]:
    """Run ``act``, but only once a caller waits for the job."""

    def do() -> None:
        keys = f"*job:{job.id}"
        eventually(lambda: any(redis.hexists(key, "watched") for key in redis.keys(keys)))
        act()

    return do


def test_attributes_show_the_last_refresh(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue(1)
    assert job.status is Status.QUEUED
    manual_worker.complete_one('{"a":[1]}')
    assert job.status is Status.QUEUED
    job.refresh()
    assert job.status is Status.COMPLETED
    assert job.result == {"a": [1]}
    assert job.enqueued_at is not None
    assert job.started_at is not None
    assert job.finished_at is not None
    assert job.enqueued_at <= job.started_at <= job.finished_at


def test_a_failure_is_kept_as_text(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    manual_worker.fail_one("no luck")
    assert job.status is Status.FAILED
    assert job.attempts == 1
    assert job.error == JobError("ValueError", "no luck", "Traceback ...")
    assert str(job.error) == "ValueError: no luck"


def test_a_retry_shows_its_time_and_error(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    error = '{"type":"E","message":"m","traceback":""}'
    manual_worker.settle(manual_worker.claim_one(), "retrying", error, "60000")
    assert job.status is Status.RETRYING
    assert job.attempts == 1
    assert job.error == JobError("E", "m")
    assert job.run_after is not None
    assert job.enqueued_at is not None
    assert timedelta(seconds=59) < job.run_after - job.enqueued_at < timedelta(seconds=65)


def test_progress_is_shown(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    claimed = manual_worker.claim_one()
    manual_worker.store.progress(
        manual_worker.claim_request.child, job.id, claimed.lease, '{"done":2,"total":5,"note":"n"}'
    )
    assert job.progress == Progress(2, 5, "n")


def test_wait_is_woken_by_the_end(redis: Redis, manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    with at_once(once_watched(redis, job, lambda: manual_worker.complete_one('"done"'))):
        watch = Stopwatch()
        assert job.wait(timeout=10) == "done"
        assert watch.seconds < 2  # not after RECHECK seconds
    assert job.status is Status.COMPLETED


def test_await_result_is_woken_by_the_end(redis: Redis, manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    with at_once(once_watched(redis, job, lambda: manual_worker.complete_one("7"))):
        assert asyncio.run(job.await_result(timeout=10)) == 7


def test_await_result_reads_a_large_result_outside_the_event_loop(
    redis: Redis, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    @async_unsafe  # like a storage that keeps files in the database
    def read(name: str) -> str:
        return f"from {name}"

    monkeypatch.setattr(client_jobs, "read_result", read)
    job = tasks.noop.enqueue()
    manual_worker.complete_one(encode_stored("redisqueue/7.json"))
    assert asyncio.run(job.await_result(timeout=10)) == "from redisqueue/7.json"


def test_await_result_leaves_the_threads_of_the_loop_to_others(
    redis: Redis, manual_worker: ManualWorker
) -> None:
    """Those threads may run what it waits for: the async jobs of one child share an event loop."""
    jobs = tasks.noop.enqueue_many([()] * 3)

    async def wait_for_all() -> list[object]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waits = [asyncio.create_task(job.await_result(timeout=5)) for job in jobs]
        for job in jobs:
            await asyncio.to_thread(once_watched(redis, job, manual_worker.complete_one))
        return await asyncio.gather(*waits)

    assert asyncio.run(wait_for_all()) == [None] * 3


def test_a_cancelled_await_result_leaves_no_thread_behind(
    redis: Redis, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of a view has gone, or a timeout has passed. The thread would otherwise wait for
    the end of the job, with its connections, and a process that exits would wait for the thread."""
    monkeypatch.setattr(client_transport, "RECHECK", 0.01)
    job = tasks.noop.enqueue()

    async def wait_and_cancel() -> None:
        waiting = asyncio.create_task(job.await_result())
        await asyncio.to_thread(once_watched(redis, job, lambda: None))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(wait_and_cancel())
    eventually(lambda: not any("redisqueue-wait" in one.name for one in threading.enumerate()))


def test_a_process_that_exits_does_not_wait_for_an_await_result(
    redis: Redis, manual_worker: ManualWorker
) -> None:
    """Not even if it closes an event loop without cancelling its tasks."""
    job = tasks.noop.enqueue()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(job.await_result())
    loop.run_until_complete(asyncio.to_thread(once_watched(redis, job, lambda: None)))
    (thread,) = [one for one in threading.enumerate() if "redisqueue-wait" in one.name]
    assert thread.daemon
    manual_worker.complete_one()
    loop.run_until_complete(waiting)
    loop.close()


def test_wait_for_an_ended_job_returns_at_once(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    manual_worker.complete_one("3")
    assert job.wait(timeout=0) == 3
    assert job.wait() == 3


def test_wait_reports_a_failure_and_a_cancel(redis: Redis, manual_worker: ManualWorker) -> None:
    failed, cancelled = tasks.noop.enqueue(), tasks.noop.enqueue()
    with (
        at_once(once_watched(redis, failed, lambda: manual_worker.fail_one("no luck"))),
        pytest.raises(JobFailed, match=f"{failed.id} is failed: ValueError: no luck"),
    ):
        failed.wait(timeout=10)
    with (
        at_once(once_watched(redis, cancelled, lambda: get_job(cancelled.id).cancel())),
        pytest.raises(JobFailed, match=r"is cancelled$"),
    ):
        cancelled.wait(timeout=10)


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)], ids=str)
def test_wait_ends_at_its_timeout(manual_worker: ManualWorker, timeout: float) -> None:
    job = tasks.noop.enqueue()
    watch = Stopwatch()
    with pytest.raises(WaitTimeout, match=f"job {job.id} had not finished after 0"):
        job.wait(timeout=timeout)
    assert watch.seconds < 1


def test_wait_with_an_invalid_timeout(manual_worker: ManualWorker) -> None:
    with pytest.raises(InvalidOption, match=r"timeout must be seconds, .* not 'long'"):
        tasks.noop.enqueue().wait(timeout="long")  # type: ignore[arg-type]


@pytest.mark.usefixtures("manual_worker")
@pytest.mark.parametrize(
    "ask",
    [
        lambda: get_job(UNKNOWN),
        lambda: Job(UNKNOWN).refresh(),
        lambda: Job(UNKNOWN).cancel(),
        lambda: Job(UNKNOWN).requeue(),
        lambda: Job(UNKNOWN).wait(1),
        lambda: asyncio.run(Job(UNKNOWN).arefresh()),
    ],
)
def test_an_unknown_job(ask: Callable[[], object], key_count: Callable[[], int]) -> None:
    with pytest.raises(JobNotFound, match=f"no job {UNKNOWN} in Redis: it never existed"):
        ask()
    assert key_count() == 0


def test_cancel_before_while_and_after_it_runs(manual_worker: ManualWorker) -> None:
    queued = tasks.noop.enqueue()
    assert queued.cancel() is True
    assert queued.status is Status.CANCELLED
    assert queued.cancel() is False

    running = tasks.noop.enqueue()
    claimed = manual_worker.claim_one()
    assert claimed.id == running.id  # the cancelled job is not claimed
    assert running.cancel() is True
    assert running.status is Status.PROCESSING
    assert running.data.cancel_ms is not None
    manual_worker.settle(claimed, "cancelled")
    running.refresh()
    assert running.status is Status.CANCELLED
    assert asyncio.run(running.acancel()) is False

    scheduled = tasks.noop.using(run_after=60).enqueue()
    assert scheduled.cancel() is True
    assert scheduled.status is Status.CANCELLED
    assert JobQueue().get_stats()["cancelled"] == 3


def test_requeue_restores_all_attempts(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    manual_worker.fail_one()
    job.requeue()
    assert job.status is Status.QUEUED
    assert (job.attempts, job.error, job.data.generation) == (0, None, 1)
    manual_worker.complete_one()
    with pytest.raises(WrongState, match=f"job {job.id} is completed; only failed or cancelled"):
        job.requeue()


def test_a_cancelled_job_can_be_requeued_and_runs_once(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    job.cancel()
    job.requeue()
    assert manual_worker.complete_one() == job.id
    assert manual_worker.claim() == []


def test_handles_are_equal_by_id() -> None:
    assert Job("a") == Job("a") != Job("b")
    assert len({Job("a"), Job("a"), Job("b")}) == 2
    assert Job("a") != "a"
    assert repr(Job("a")) == "<Job a>"
