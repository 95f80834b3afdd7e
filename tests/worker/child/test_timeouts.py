"""Timeouts and cancels reach the job that they are meant for, whatever it does, and no other."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from tests.app import tasks as app_tasks
from tests.support.cluster import is_on_cluster
from tests.support.shards import keys_of
from tests.support.stopwatch import Stopwatch
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually


@pytest.mark.parametrize("kind", ["sleep", "spin"])
def test_a_timeout_is_raised_inside_the_job(harness: WorkerHarness, kind: str) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    children = worker.children
    watch = Stopwatch()
    job = getattr(app_tasks, kind).using(timeout=0.4).enqueue(30)
    harness.ended(job, 5)
    assert watch.elapsed >= 0.4
    assert watch.seconds < 1.5
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.type.endswith("JobTimeout")
    assert job.error.reason == "timeout"
    first_frame = job.error.traceback.splitlines()[1]
    assert "tests/app/tasks.py" in first_frame
    assert f"in {kind}" in first_frame
    assert worker.children == children  # no process was killed for it


def test_interrupts_that_a_task_group_of_asyncio_wraps(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1")
    late = harness.ended(tasks.spin_in_a_group.using(timeout=0.4).enqueue(30))
    assert late.error is not None
    assert (late.status, late.error.reason) == ("failed", "timeout")
    cancelled = harness.running(tasks.spin_in_a_group.enqueue(30))
    assert cancelled.cancel()
    harness.ended(cancelled)
    assert cancelled.status == "cancelled"


@pytest.mark.slow
def test_a_job_stuck_in_c_is_killed_and_the_others_continue(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "2").wait_until_up(3)
    watch = Stopwatch()
    stuck = tasks.run_then_block.using(timeout=0.5).enqueue(harness.book, "stuck", 60)
    twice = tasks.stuck_at_first.using(timeout=0.5).enqueue(harness.book, "twice", 60)
    eventually(lambda: len(harness.runs()) == 2, why=harness.report)
    first, second = harness.pid("stuck"), harness.pid("twice")
    waiting = tasks.run.enqueue_many([(harness.book, f"short{n}") for n in range(20)])
    harness.ended(stuck, 10)
    assert watch.elapsed > 5
    assert watch.seconds < 7.5
    assert stuck.error is not None
    assert stuck.error.reason == "timeout"
    assert "its process was killed" in stuck.error.message
    # With attempts left, it is retried.
    harness.ended(twice, 5)
    assert (twice.status, twice.attempts, twice.result) == ("completed", 1, 2)
    assert (stuck.recoveries, twice.recoveries) == (0, 0)
    harness.until_done(21, failed=1)
    assert harness.statuses(waiting) == {"completed": 20}
    assert {first, second} & set(worker.children) == set()
    assert len(worker.children) == 3


@pytest.mark.slow
def test_while_one_child_is_stuck_the_other_continues(harness: WorkerHarness) -> None:
    harness.worker("--processes", "2").wait_until_up(3)
    stuck = tasks.stubborn.using(timeout=0.3).enqueue(harness.book, "stuck", 60)
    eventually(lambda: harness.runs()["stuck"])
    shorts = tasks.run.enqueue_many([(harness.book, f"short{n}") for n in range(200)])
    eventually(lambda: harness.statuses(shorts) == {"completed": 200}, 3, why=harness.report)
    stuck.refresh()
    assert stuck.status == "processing"
    harness.ended(stuck, 8)
    assert (stuck.status, stuck.attempts) == ("failed", 1)
    # it was interrupted once, and swallowed the interrupt
    assert harness.runs()["stuck-JobTimeout"] == 1


def test_a_timeout_never_hits_the_next_job(harness: WorkerHarness) -> None:
    """A thousand jobs that end just at their timeout, each followed by a job without one."""
    harness.worker("--processes", "2").wait_until_up(3)
    limit = 0.004
    # Half of the jobs end near the timeout, half anywhere up to twice that time, because a busy
    # machine wakes up late.
    edge = app_tasks.sleep.using(timeout=limit).enqueue_many(
        [(limit + (n % 40 - 20) / (20_000 if n % 2 else 5_000),) for n in range(500)]
    )
    innocent = app_tasks.spin.using(timeout=5).enqueue_many([(0.001,)] * 500)
    eventually(lambda: sum(map(harness.stats().get, ("completed", "failed"))) == 1000, 30)
    assert harness.statuses(innocent) == {"completed": 500}
    outcomes = harness.statuses(edge)
    assert outcomes["completed"] > 10, outcomes
    assert outcomes["failed"] > 10, outcomes
    assert harness.count("recovered_total") == 0


def test_a_timed_out_job_is_retried_while_attempts_remain(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    job = tasks.slow_at_first.using(timeout=0.3).enqueue(harness.book, "slow", 30)
    harness.ended(job)
    assert (job.status, job.attempts, job.result) == ("completed", 1, 2)


def test_a_job_without_a_timeout_may_take_its_time(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1", TIMEOUT=0.3).wait_until_up(2)
    patient = app_tasks.sleep.using(timeout=0).enqueue(1.0)
    hurried = app_tasks.sleep.enqueue(1.0)
    harness.ended(patient)
    harness.ended(hurried)
    assert (patient.status, hurried.status) == ("completed", "failed")


def publish(harness: WorkerHarness, channel: str, message: str) -> int:
    """Returns how many listeners received the message. On a cluster channels are sharded, which
    Redis 6.2 does not support."""
    if not is_on_cluster():
        return harness.redis.publish(channel, message)
    owner = harness.redis.get_node_from_key(channel).redis_connection
    try:
        return owner.spublish(channel, message)
    except ResponseError:
        return owner.publish(channel, message)


@pytest.mark.parametrize("kind", ["sleep", "spin", "async_sleep"])
def test_a_cancel_interrupts_a_running_job_at_once(harness: WorkerHarness, kind: str) -> None:
    harness.configure(LEASE=60, HEARTBEAT=20)  # the channel must deliver it, not the heartbeat
    harness.worker("--processes", "1").wait_until_up(2)
    job = harness.running(getattr(app_tasks, kind).enqueue(30))
    assert publish(harness, keys_of().control, "what is this")  # other orders still work after it
    watch = Stopwatch()
    assert job.cancel()
    harness.ended(job, 5)
    assert watch.seconds < 1
    assert (job.status, job.attempts) == ("cancelled", 0)
    # The cancel does not hit the child's next job.
    after = harness.ended(tasks.run.enqueue(harness.book, "after"))
    assert after.status == "completed"


def test_a_cancel_is_found_by_the_heartbeat_when_its_message_was_lost(
    harness: WorkerHarness,
) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    job = harness.running(app_tasks.sleep.enqueue(30))
    harness.redis.hset(keys_of().job(job.id), "cancel_ms", 1)
    harness.ended(job, 3)
    assert job.status == "cancelled"


def test_the_cancel_of_each_of_many_async_jobs_is_noticed(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1", "--async-concurrency", "300").wait_until_up(2)
    jobs = app_tasks.async_sleep.enqueue_many([(60,)] * 250)
    eventually(lambda: harness.stats()["processing"] == 250, why=harness.report)
    flagged = jobs[:40] + jobs[-40:]  # in whichever order they are checked, a hundred at a time
    for job in flagged:  # without a message
        harness.redis.hset(keys_of().job(job.id), "cancel_ms", 1)
    eventually(lambda: harness.statuses(flagged) == {"cancelled": 80}, 8, why=harness.report)
    assert harness.stats()["processing"] == 170


def test_a_task_that_checks_for_a_cancel_may_end_as_it_likes(harness: WorkerHarness) -> None:
    """A cancel interrupts it all the same. A task that swallows the interrupt completes when it is
    done."""
    harness.worker("--processes", "1").wait_until_up(2)
    job = tasks.polite.enqueue(harness.book, "polite", 30)
    # inside the task, not before it
    eventually(lambda: harness.runs()["polite"], why=harness.report)
    watch = Stopwatch()
    job.cancel()
    harness.ended(job, 5)
    assert watch.seconds < 1
    assert harness.runs()["polite-saw-it"] == 1
    assert (job.status, job.result) == ("completed", "stopped in order")


def test_a_cancel_without_any_worker(harness: WorkerHarness) -> None:
    queued, later = (
        tasks.run.enqueue(harness.book, "queued"),
        tasks.run.using(run_after=0.2).enqueue(harness.book, "later"),
    )
    assert queued.cancel()
    assert later.cancel()
    last = tasks.run.enqueue(harness.book, "last")
    harness.worker("--processes", "1")
    harness.ended(last)
    harness.until_done(1, cancelled=2)
    assert harness.runs() == {"last": 1}


def test_a_running_job_cancelled_while_its_worker_is_dead_is_not_run_again(
    harness: WorkerHarness,
) -> None:
    dead = harness.worker("--processes", "1").wait_until_up(2)
    job = harness.running(app_tasks.sleep.enqueue(30))
    dead.kill()
    job.cancel()
    harness.worker("--processes", "1")
    harness.ended(job)
    assert job.status == "cancelled"


def test_an_interrupt_in_a_transaction_rolls_it_back(
    harness: WorkerHarness, database: object
) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    job = tasks.leave_atomic.using(timeout=0.3).enqueue("half", 30)
    harness.ended(job)
    assert job.status == "failed"
    counted = harness.ended(app_tasks.async_query.enqueue())
    assert counted.result == 0


def test_the_state_in_which_a_job_leaves_its_connection_does_not_affect_the_next(
    harness: WorkerHarness, database: object
) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    harness.ended(tasks.enter_atomic_by_hand.enqueue())
    good = harness.ended(app_tasks.count.enqueue("good"))
    assert good.status == "completed", good.error


@pytest.mark.parametrize("threads", [1, 2])
def test_a_connection_that_was_interrupted_as_it_opened_is_not_used_again(
    harness: WorkerHarness, database: object, threads: int
) -> None:
    """No one would check it, close it or, without autocommit, commit it."""
    harness.worker("--processes", "1", "--threads", str(threads)).wait_until_up(2)
    assert harness.ended(tasks.connect_slowly.using(timeout=0.3).enqueue()).status == "failed"
    jobs = [harness.ended(tasks.connects.enqueue()) for _ in range(threads)]
    assert [job.result for job in jobs] == [True] * threads


def test_a_job_that_clears_the_alarm_does_not_disable_the_next_timeout(
    harness: WorkerHarness,
) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    children = worker.children
    harness.ended(tasks.clear_alarm.using(timeout=0.5).enqueue(1.0))
    job = harness.ended(app_tasks.sleep.using(timeout=0.5).enqueue(30))
    assert job.error is not None
    assert (job.status, job.error.reason) == ("failed", "timeout")
    assert "its process was killed" not in job.error.message
    assert worker.children == children
