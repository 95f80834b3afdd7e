"""Redis dies, returns, loses replies, is full, or has keys deleted by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue.exceptions import RedisFull
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.shards import keys_of

from . import tasks
from .processes import eventually, holds_for
from .stage import Producers, Stage

pytestmark = pytest.mark.one_server("most stop their server")


def test_redis_is_killed_while_workers_are_idle(stage: Stage) -> None:
    worker = stage.worker("--processes", "2").wait_until_up(3)
    job = stage.ended(tasks.run.enqueue(stage.book, "first"))
    stage.server.kill()
    eventually(lambda: "trying again until it answers" in worker.output, 8, why=stage.report)
    stage.server.start()
    job = stage.ended(tasks.run.enqueue(stage.book, "second"), 5)
    assert job.status == "completed"
    later = stage.ended(tasks.run.using(run_after=0.2).enqueue(stage.book, "third"), 5)
    assert later.status == "completed"
    assert worker.process.poll() is None


def test_redis_is_killed_under_load(stage: Stage) -> None:
    """Each accepted job runs once. Others may have been enqueued without a reply."""
    stage.worker("--processes", "2").wait_until_up(3)
    with Producers(stage.book) as producers:
        for n in range(3):
            eventually(lambda n=n: len(producers.accepted) > 100 * (n + 1), why=stage.report)
            stage.redis.config_set("appendfsync", "always")  # otherwise the kill may lose jobs
            stage.server.kill()
            stage.server.start()
        eventually(lambda: len(producers.accepted) > 400, why=stage.report)
    names = {one.name for one in producers.accepted}
    eventually(lambda: stage.stats()["completed"] >= len(names), 20, why=stage.report)
    eventually(lambda: stage.stats()["processing"] == 0, 10, why=stage.report)
    assert names <= stage.runs().keys()
    assert set(stage.runs().values()) == {1}
    assert stage.count("completed_total") == stage.stats()["completed"]


def test_redis_is_killed_while_jobs_run_and_end(stage: Stage) -> None:
    """The report hits a dead server, and is repeated until it is accepted."""
    stage.configure(LEASE=15, HEARTBEAT=0.4)
    stage.worker("--processes", "2").wait_until_up(3)
    jobs = tasks.run_then_sleep.enqueue_many([(stage.book, f"slow{n}", 0.4) for n in range(2)])
    eventually(lambda: len(stage.runs()) == 2)
    stage.server.kill()
    time.sleep(0.6)  # the length of the fault: both jobs end during it
    stage.server.start()
    stage.until_done(2)
    assert stage.runs() == {"slow0": 1, "slow1": 1}
    for job in jobs:
        job.refresh()
        assert (job.attempts, job.recoveries, job.result) == (0, 0, 1)


@pytest.fixture
def proxy(stage: Stage, fresh_proxy: Callable[..., Proxy]) -> Proxy:
    return fresh_proxy(stage.server.address)


@pytest.mark.parametrize("jobs", [1, 300])
def test_lost_replies_duplicate_nothing(stage: Stage, proxy: Proxy, jobs: int) -> None:
    """The script ran but its reply was lost: the same call returns the same jobs."""
    stage.worker("--processes", "2", address=proxy.address).wait_until_up(3)
    warm = stage.warm_up() if jobs > 1 else 0
    names = []
    for n in range(8):
        before = proxy.dropped
        proxy.drop_replies(2, matching=b"EVALSHA")
        batch = [f"job{n}.{m}" for m in range(jobs)]
        names += batch
        tasks.run.enqueue_many([(stage.book, name) for name in batch])
        eventually(lambda before=before: proxy.dropped == before + 2, why=stage.report)
    stage.until_done(warm + 8 * jobs, 20)
    assert stage.runs() == dict.fromkeys(names, 1)
    assert proxy.dropped == 16
    assert stage.count("recovered_total") == 0
    assert stage.redis.keys("*child:*:processing") == []


def test_a_black_hole_is_detected(stage: Stage, proxy: Proxy) -> None:
    """Packets vanish and no connection breaks: only timeouts detect it."""
    stage.configure(LEASE=30, HEARTBEAT=1)
    worker = stage.worker("--processes", "1", address=proxy.address).wait_until_up(2)
    stage.ended(tasks.run.enqueue(stage.book, "before"))
    proxy.black_hole()
    job = tasks.run.enqueue(stage.book, "during")
    eventually(lambda: "does not answer" in worker.output, 15, why=stage.report)
    proxy.black_hole(False)
    stage.ended(job, 10)
    assert stage.runs() == {"before": 1, "during": 1}


def test_a_subscription_that_the_network_has_forgotten_is_reopened(
    stage: Stage, proxy: Proxy
) -> None:
    """Nothing is sent over it, so no timeout detects the loss: cancels would wait for
    heartbeats."""
    stage.configure(LEASE=200, HEARTBEAT=60)
    stage.alter("quick_control")
    stage.worker("--processes", "1", address=proxy.address).wait_until_up(2)
    job = stage.running(tasks.run_then_sleep.enqueue(stage.book, "slow", 60))
    eventually(stage.runs)  # otherwise the reply to its claim may be what gets lost
    channel = keys_of().control
    proxy.forget()
    # Redis still has the old subscription too
    eventually(lambda: stage.redis.pubsub_numsub(channel)[0][1] > 1)
    assert job.cancel()
    stage.ended(job)  # the child must also notice that its connection is dead
    assert job.status == "cancelled"


def test_after_an_outage_longer_than_the_lease_no_running_job_is_reaped(
    stage: Stage,
) -> None:
    stage.configure(LEASE=0.9, HEARTBEAT=0.3)
    first = stage.worker("--processes", "2").wait_until_up(3)
    stage.worker("--processes", "2").wait_until_up(3)
    jobs = tasks.run_then_sleep.enqueue_many([(stage.book, f"slow{n}", 3.0) for n in range(4)])
    reporting = tasks.run_then_report.enqueue(stage.book, "reporting", 1.0)
    eventually(lambda: len(stage.runs()) == 4, why=stage.report)
    stage.server.kill()
    time.sleep(1.9)  # the length of the outage: twice the lease
    stage.server.start()
    stage.until_done(5, 15)
    assert set(stage.runs().values()) == {1}, stage.report()
    for job in [*jobs, reporting]:
        job.refresh()
        assert (job.recoveries, job.attempts) == (0, 0)
    assert "of a dead child" not in first.output


def test_progress_that_cannot_be_stored_does_not_fail_the_job(stage: Stage) -> None:
    stage.worker("--processes", "1").wait_until_up(2)
    job = tasks.run_then_report.enqueue(stage.book, "reporting", 1.5)
    eventually(lambda: stage.runs()["reporting"])
    stage.server.kill()
    time.sleep(0.5)  # the length of the fault
    stage.server.start()
    stage.ended(job)
    assert (job.status, job.attempts) == ("completed", 0)


def test_a_full_redis_accepts_finishes_and_refuses_enqueues(
    fresh_server: Callable[..., RedisServer], stage: Stage
) -> None:
    worker = stage.worker("--processes", "2").wait_until_up(3)
    running = tasks.run_then_sleep.enqueue(stage.book, "running", 1.0)
    eventually(lambda: stage.runs()["running"])
    waiting = tasks.run.using(run_after=1.2).enqueue(stage.book, "waiting")
    stage.redis.config_set("maxmemory", "1")
    with pytest.raises(RedisFull, match="has reached maxmemory"):
        tasks.run.enqueue(stage.book, "refused")
    stage.ended(running)
    stage.ended(waiting)
    assert (running.status, waiting.status) == ("completed", "completed")
    # Redis is still full, but heartbeats get through, and a crash is recovered.
    holds_for(lambda: worker.process.poll() is None, 1)
    stage.redis.config_set("maxmemory", "0")
    stage.ended(tasks.run.enqueue(stage.book, "accepted"))
    assert "of a dead child" not in worker.output


def _delete_lease(stage: Stage) -> None:
    assert stage.redis.delete(keys_of().workers)


def _delete_wake_token(stage: Stage) -> None:
    stage.redis.delete(keys_of().queue("default").wake, keys_of().timer)


def _delete_processing_lists(stage: Stage) -> None:
    keys = stage.redis.keys("*child:*:processing")
    assert keys
    stage.redis.delete(*keys)


def _delete_processing_set(stage: Stage) -> None:
    assert stage.redis.delete(keys_of().queue("default").processing)


def _delete_meta(stage: Stage) -> None:
    assert stage.redis.delete(keys_of().meta)


@pytest.mark.parametrize(
    "meddle",
    [
        _delete_lease,
        _delete_wake_token,
        _delete_processing_lists,
        _delete_processing_set,
        _delete_meta,
    ],
)
def test_keys_deleted_by_hand_lose_no_job(stage: Stage, meddle: Callable[[Stage], Any]) -> None:
    stage.worker("--processes", "2").wait_until_up(3)
    tasks.run_then_sleep.enqueue_many([(stage.book, f"slow{n}", 0.5) for n in range(4)])
    eventually(lambda: len(stage.runs()) == 2, why=stage.report)
    meddle(stage)
    tasks.run.enqueue_many([(stage.book, f"short{n}") for n in range(20)])
    stage.until_done(24)
    assert set(stage.runs().values()) == {1}


def test_processing_lists_deleted_with_their_worker_dead(stage: Stage) -> None:
    """Only the jobs' hashes still tell who held them; the search for orphans finds them."""
    dead = stage.worker("--processes", "1").wait_until_up(2)
    job = tasks.run_then_sleep.enqueue(stage.book, "slow", 1.0)
    eventually(lambda: stage.runs()["slow"])
    dead.kill()
    _delete_lease(stage)
    _delete_processing_lists(stage)
    command = stage.worker("--interval", "0.3", command="reapqueue")
    eventually(lambda: "which does not exist: recovered" in command.output, why=stage.report)
    stage.worker("--processes", "1")
    stage.ended(job)
    assert (job.status, job.recoveries) == ("completed", 1)


def test_a_job_whose_hash_was_deleted_is_named(stage: Stage) -> None:
    job = tasks.run.enqueue(stage.book, "gone")
    stage.redis.delete(keys_of().job(job.id))
    worker = stage.worker("--processes", "1")
    eventually(lambda: job.id in worker.output, why=stage.report)
    assert "ids without a job were in the queue" in worker.output


def test_a_worker_started_before_redis_waits_for_it(stage: Stage) -> None:
    tasks.run.enqueue(stage.book, "waiting")
    stage.server.kill()
    worker = stage.worker("--processes", "1")
    eventually(lambda: "trying again until it answers" in worker.output, why=stage.report)
    stage.server.start()
    stage.until_done(1)
    assert "Redis answers again" in worker.output


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_worker_started_while_redis_cannot_save_waits_for_it(
    stage: Stage, is_empty: bool
) -> None:
    """Redis refuses PING too. A worker that finds no data has to write the number of shards."""
    if is_empty:
        stage.redis.set("another", "program")
    else:
        tasks.run.enqueue(stage.book, "waiting")
    with stage.server.save_failing():
        worker = stage.worker("--processes", "1")
        eventually(
            lambda: "cannot save to disk and refuses writes; look at its log" in worker.output,
            why=stage.report,
        )
        assert worker.process.poll() is None, worker.output
    if is_empty:
        tasks.run.enqueue(stage.book, "waiting")
    stage.until_done(1)
    assert "Redis answers again" in worker.output


def test_scripts_that_redis_has_forgotten_are_sent_again(stage: Stage) -> None:
    stage.worker("--processes", "1").wait_until_up(2)
    stage.ended(tasks.run.enqueue(stage.book, "first"))
    stage.redis.script_flush()
    stage.ended(tasks.run.enqueue(stage.book, "second"))
