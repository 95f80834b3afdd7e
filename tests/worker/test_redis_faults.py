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
from .harness import Producers, WorkerHarness
from .processes import eventually, holds_for

pytestmark = pytest.mark.one_server("most stop their server")


def test_redis_is_killed_while_workers_are_idle(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "2").wait_until_up(3)
    job = harness.ended(tasks.run.enqueue(harness.book, "first"))
    harness.server.kill()
    eventually(lambda: "trying again until it answers" in worker.output, 8, why=harness.report)
    harness.server.start()
    job = harness.ended(tasks.run.enqueue(harness.book, "second"), 5)
    assert job.status == "completed"
    later = harness.ended(tasks.run.using(run_after=0.2).enqueue(harness.book, "third"), 5)
    assert later.status == "completed"
    assert worker.process.poll() is None


def test_redis_is_killed_under_load(harness: WorkerHarness) -> None:
    """Each accepted job runs once. Others may have been enqueued without a reply."""
    harness.worker("--processes", "2").wait_until_up(3)
    with Producers(harness.book) as producers:
        for n in range(3):
            eventually(lambda n=n: len(producers.accepted) > 100 * (n + 1), why=harness.report)
            harness.redis.config_set("appendfsync", "always")  # otherwise the kill may lose jobs
            harness.server.kill()
            harness.server.start()
        eventually(lambda: len(producers.accepted) > 400, why=harness.report)
    names = {one.name for one in producers.accepted}
    eventually(lambda: harness.stats()["completed"] >= len(names), 20, why=harness.report)
    eventually(lambda: harness.stats()["processing"] == 0, 10, why=harness.report)
    assert names <= harness.runs().keys()
    assert set(harness.runs().values()) == {1}
    assert harness.count("completed_total") == harness.stats()["completed"]


def test_redis_is_killed_while_jobs_run_and_end(harness: WorkerHarness) -> None:
    """The report hits a dead server, and is repeated until it is accepted."""
    harness.configure(LEASE=15, HEARTBEAT=0.4)
    harness.worker("--processes", "2").wait_until_up(3)
    jobs = tasks.run_then_sleep.enqueue_many([(harness.book, f"slow{n}", 0.4) for n in range(2)])
    eventually(lambda: len(harness.runs()) == 2)
    harness.server.kill()
    time.sleep(0.6)  # the length of the fault: both jobs end during it
    harness.server.start()
    harness.until_done(2)
    assert harness.runs() == {"slow0": 1, "slow1": 1}
    for job in jobs:
        job.refresh()
        assert (job.attempts, job.recoveries, job.result) == (0, 0, 1)


@pytest.fixture
def proxy(harness: WorkerHarness, fresh_proxy: Callable[..., Proxy]) -> Proxy:
    return fresh_proxy(harness.server.address)


@pytest.mark.parametrize("jobs", [1, 300])
def test_lost_replies_duplicate_nothing(harness: WorkerHarness, proxy: Proxy, jobs: int) -> None:
    """The script ran but its reply was lost: the same call returns the same jobs."""
    harness.worker("--processes", "2", address=proxy.address).wait_until_up(3)
    warm = harness.warm_up() if jobs > 1 else 0
    names = []
    for n in range(8):
        before = proxy.dropped
        proxy.drop_replies(2, matching=b"EVALSHA")
        batch = [f"job{n}.{m}" for m in range(jobs)]
        names += batch
        tasks.run.enqueue_many([(harness.book, name) for name in batch])
        eventually(lambda before=before: proxy.dropped == before + 2, why=harness.report)
    harness.until_done(warm + 8 * jobs, 20)
    assert harness.runs() == dict.fromkeys(names, 1)
    assert proxy.dropped == 16
    assert harness.count("recovered_total") == 0
    assert harness.redis.keys("*child:*:processing") == []


def test_a_black_hole_is_detected(harness: WorkerHarness, proxy: Proxy) -> None:
    """Packets vanish and no connection breaks: only timeouts detect it."""
    harness.configure(LEASE=30, HEARTBEAT=1)
    worker = harness.worker("--processes", "1", address=proxy.address).wait_until_up(2)
    harness.ended(tasks.run.enqueue(harness.book, "before"))
    proxy.black_hole()
    job = tasks.run.enqueue(harness.book, "during")
    eventually(lambda: "does not answer" in worker.output, 15, why=harness.report)
    proxy.black_hole(False)
    harness.ended(job, 10)
    assert harness.runs() == {"before": 1, "during": 1}


@pytest.mark.slow
def test_a_subscription_that_the_network_has_forgotten_is_reopened(
    harness: WorkerHarness, proxy: Proxy
) -> None:
    """Nothing is sent over it, so no timeout detects the loss: cancels would wait for
    heartbeats."""
    harness.configure(LEASE=200, HEARTBEAT=60)
    harness.alter("quick_control")
    harness.worker("--processes", "1", address=proxy.address).wait_until_up(2)
    job = harness.running(tasks.run_then_sleep.enqueue(harness.book, "slow", 60))
    eventually(harness.runs)  # otherwise the reply to its claim may be what gets lost
    channel = keys_of().control
    proxy.forget()
    # Redis still has the old subscription too
    eventually(lambda: harness.redis.pubsub_numsub(channel)[0][1] > 1)
    assert job.cancel()
    harness.ended(job)  # the child must also notice that its connection is dead
    assert job.status == "cancelled"


def test_after_an_outage_longer_than_the_lease_no_running_job_is_reaped(
    harness: WorkerHarness,
) -> None:
    harness.configure(LEASE=0.9, HEARTBEAT=0.3)
    first = harness.worker("--processes", "2").wait_until_up(3)
    harness.worker("--processes", "2").wait_until_up(3)
    jobs = tasks.run_then_sleep.enqueue_many([(harness.book, f"slow{n}", 3.0) for n in range(4)])
    reporting = tasks.run_then_report.enqueue(harness.book, "reporting", 1.0)
    eventually(lambda: len(harness.runs()) == 4, why=harness.report)
    harness.server.kill()
    time.sleep(1.9)  # the length of the outage: twice the lease
    harness.server.start()
    harness.until_done(5, 15)
    assert set(harness.runs().values()) == {1}, harness.report()
    for job in [*jobs, reporting]:
        job.refresh()
        assert (job.recoveries, job.attempts) == (0, 0)
    assert "of a dead child" not in first.output


def test_progress_that_cannot_be_stored_does_not_fail_the_job(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    job = tasks.run_then_report.enqueue(harness.book, "reporting", 1.5)
    eventually(lambda: harness.runs()["reporting"])
    harness.server.kill()
    time.sleep(0.5)  # the length of the fault
    harness.server.start()
    harness.ended(job)
    assert (job.status, job.attempts) == ("completed", 0)


def test_a_full_redis_accepts_finishes_and_refuses_enqueues(
    fresh_server: Callable[..., RedisServer], harness: WorkerHarness
) -> None:
    worker = harness.worker("--processes", "2").wait_until_up(3)
    running = tasks.run_then_sleep.enqueue(harness.book, "running", 1.0)
    eventually(lambda: harness.runs()["running"])
    waiting = tasks.run.using(run_after=1.2).enqueue(harness.book, "waiting")
    harness.redis.config_set("maxmemory", "1")
    with pytest.raises(RedisFull, match="has reached maxmemory"):
        tasks.run.enqueue(harness.book, "refused")
    harness.ended(running)
    harness.ended(waiting)
    assert (running.status, waiting.status) == ("completed", "completed")
    # Redis is still full, but heartbeats get through, and a crash is recovered.
    holds_for(lambda: worker.process.poll() is None, 1)
    harness.redis.config_set("maxmemory", "0")
    harness.ended(tasks.run.enqueue(harness.book, "accepted"))
    assert "of a dead child" not in worker.output


def _delete_lease(harness: WorkerHarness) -> None:
    assert harness.redis.delete(keys_of().workers)


def _delete_wake_token(harness: WorkerHarness) -> None:
    harness.redis.delete(keys_of().queue("default").wake, keys_of().timer)


def _delete_processing_lists(harness: WorkerHarness) -> None:
    keys = harness.redis.keys("*child:*:processing")
    assert keys
    harness.redis.delete(*keys)


def _delete_processing_set(harness: WorkerHarness) -> None:
    assert harness.redis.delete(keys_of().queue("default").processing)


def _delete_meta(harness: WorkerHarness) -> None:
    assert harness.redis.delete(keys_of().meta)


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
def test_keys_deleted_by_hand_lose_no_job(
    harness: WorkerHarness, meddle: Callable[[WorkerHarness], Any]
) -> None:
    harness.worker("--processes", "2").wait_until_up(3)
    gates = [harness.gate() for _ in range(4)]
    tasks.run_until_gate_opens.enqueue_many(
        [(harness.book, f"slow{n}", gate) for n, gate in enumerate(gates)]
    )
    eventually(lambda: len(harness.runs()) == 2, why=harness.report)
    meddle(harness)
    tasks.run.enqueue_many([(harness.book, f"short{n}") for n in range(20)])
    for gate in gates:
        harness.open_gate(gate)
    harness.until_done(24)
    assert set(harness.runs().values()) == {1}


def test_processing_lists_deleted_with_their_worker_dead(harness: WorkerHarness) -> None:
    """Only the jobs' hashes still tell who held them; the search for orphans finds them."""
    dead = harness.worker("--processes", "1").wait_until_up(2)
    job = tasks.slow_at_first.enqueue(harness.book, "slow", 60)
    eventually(lambda: harness.runs()["slow"])
    dead.kill()
    _delete_lease(harness)
    _delete_processing_lists(harness)
    command = harness.worker("--interval", "0.3", command="reapqueue")
    eventually(lambda: "which does not exist: recovered" in command.output, why=harness.report)
    harness.worker("--processes", "1")
    harness.ended(job)
    assert (job.status, job.recoveries) == ("completed", 1)


def test_a_job_whose_hash_was_deleted_is_named(harness: WorkerHarness) -> None:
    job = tasks.run.enqueue(harness.book, "gone")
    harness.redis.delete(keys_of().job(job.id))
    worker = harness.worker("--processes", "1")
    eventually(lambda: job.id in worker.output, why=harness.report)
    assert "ids without a job were in the queue" in worker.output


def test_a_worker_started_before_redis_waits_for_it(harness: WorkerHarness) -> None:
    tasks.run.enqueue(harness.book, "waiting")
    harness.server.kill()
    worker = harness.worker("--processes", "1")
    eventually(lambda: "trying again until it answers" in worker.output, why=harness.report)
    harness.server.start()
    harness.until_done(1)
    assert "Redis answers again" in worker.output


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_worker_started_while_redis_cannot_save_waits_for_it(
    harness: WorkerHarness, is_empty: bool
) -> None:
    """Redis refuses PING too. A worker that finds no data has to write the number of shards."""
    if is_empty:
        harness.redis.set("another", "program")
    else:
        tasks.run.enqueue(harness.book, "waiting")
    with harness.server.save_failing():
        worker = harness.worker("--processes", "1")
        eventually(
            lambda: "cannot save to disk and refuses writes; look at its log" in worker.output,
            why=harness.report,
        )
        assert worker.process.poll() is None, worker.output
    if is_empty:
        tasks.run.enqueue(harness.book, "waiting")
    harness.until_done(1)
    assert "Redis answers again" in worker.output


def test_scripts_that_redis_has_forgotten_are_sent_again(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    harness.ended(tasks.run.enqueue(harness.book, "first"))
    harness.redis.script_flush()
    harness.ended(tasks.run.enqueue(harness.book, "second"))
