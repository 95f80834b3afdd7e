"""Async jobs: many at a time on one loop, and as safe as the sync jobs that run alongside them."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from django_redisqueue import JobQueue
from django_redisqueue.broker.replies import ClaimReply
from django_redisqueue.client.jobs import Job
from django_redisqueue.worker.child.loop import Child
from tests.app import tasks as app_tasks
from tests.support.burst import work
from tests.support.postgres import PostgresServer
from tests.support.shards import keys_of
from tests.support.stopwatch import Stopwatch
from tests.worker import tasks
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually


def test_async_jobs_run_many_at_a_time(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1", "--async-concurrency", "200").wait_until_up(2)
    harness.ended(app_tasks.async_sleep.enqueue(0))
    watch = Stopwatch()
    jobs = app_tasks.async_sleep.enqueue_many([(0.5,)] * 200)
    harness.until_done(201)
    assert watch.seconds < 2.5  # one after another, they would take 100 s
    assert harness.statuses(jobs) == {"completed": 200}


def test_no_more_than_the_concurrency_run_at_a_time(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1", "--async-concurrency", "3").wait_until_up(2)
    jobs = tasks.async_gauge.enqueue_many([(0.1,)] * 30)
    harness.until_done(30)
    assert max(harness.results(jobs)) == 3


def test_async_jobs_that_do_not_fit_wait_in_the_queue(harness: WorkerHarness) -> None:
    """There, another worker can take them; they do not wait behind the running ones."""
    harness.worker("--processes", "1", "--async-concurrency", "2").wait_until_up(2)
    warm = harness.warm_up()
    gates = [harness.gate() for _ in range(10)]
    tasks.async_run_until_gate_opens.enqueue_many(
        [(harness.book, f"long{n}", gate) for n, gate in enumerate(gates)]
    )
    eventually(lambda: len(harness.runs()) == 2, why=harness.report)
    eventually(
        lambda: (harness.stats()["processing"], harness.stats()["queued"]) == (2, 8),
        1,
        why=harness.report,
    )
    other = harness.worker("--processes", "1", "--async-concurrency", "100")
    eventually(lambda: len(harness.runs()) == 10, why=harness.report)
    for gate in gates:
        harness.open_gate(gate)
    harness.until_done(warm + 10)
    assert set(harness.runs().values()) == {1}
    assert other.children


def test_jobs_claimed_with_others_that_turn_out_slow_are_released(harness: WorkerHarness) -> None:
    """Many short jobs have taught the child to claim more than it has slots for."""
    harness.worker("--processes", "1", "--async-concurrency", "2").wait_until_up(2)
    app_tasks.async_sleep.enqueue_many([(0,)] * 300)
    harness.until_done(300)
    gates = [harness.gate() for _ in range(2)]
    queue = JobQueue("default")
    queue.pause()  # so that they are claimed together
    tasks.async_run_until_gate_opens.enqueue_many(
        [(harness.book, f"slow{n}", gate) for n, gate in enumerate(gates)]
    )
    tasks.async_run.enqueue_many([(harness.book, f"short{n}", 0.0) for n in range(20)])
    queue.resume()
    eventually(
        lambda: (harness.stats()["processing"], harness.stats()["queued"]) == (2, 20),
        1,
        why=harness.report,
    )
    for gate in gates:
        harness.open_gate(gate)
    harness.until_done(322)
    assert set(harness.runs().values()) == {1}
    assert harness.count("recovered_total") == 0


def claims_without_a_slot(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[int]:
    """How many jobs each claim asked for while no slot was free."""
    found = []
    claim = Child._claim

    def noted(child: Child) -> ClaimReply:
        if not child._async_runner.free_slots:
            found.append(child._wanted())
        return claim(child)

    monkeypatch.setattr(Child, "_claim", noted)
    app_tasks.async_sleep.enqueue_many([(seconds,)] * 400)
    work(async_concurrency=2)
    assert JobQueue("default").get_stats()["completed"] == 400
    return found


def test_jobs_are_claimed_before_they_have_a_slot_while_jobs_are_short(
    queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise slots would stay empty during each claim."""
    assert max(claims_without_a_slot(monkeypatch, 0.001)) > 1


def test_no_job_is_claimed_without_a_slot_if_it_may_wait_longer_than_the_window(
    queue_settings: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDISQUEUE = {**queue_settings, "BATCH_WINDOW_MS": 1}
    assert claims_without_a_slot(monkeypatch, 0.004) == []


def test_timeouts_and_errors_of_async_jobs(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    late = app_tasks.async_sleep.using(timeout=0.3).enqueue(30)
    wrong = app_tasks.async_fail.enqueue("async boom")
    fine = app_tasks.async_sleep.using(timeout=5).enqueue(0.6)
    for job in (late, wrong, fine):
        harness.ended(job, 5)
    assert (late.status, wrong.status, fine.status) == ("failed", "failed", "completed")
    assert late.error is not None
    assert late.error.reason == "timeout"
    assert wrong.error is not None
    assert (wrong.error.type, wrong.error.message) == ("ValueError", "async boom")
    assert "in async_fail" in wrong.error.traceback


def test_a_loop_stopped_by_its_own_job_keeps_running(harness: WorkerHarness) -> None:
    worker = harness.worker("--processes", "1").wait_until_up(2)
    jobs = [app_tasks.async_sleep.enqueue(0.5), tasks.async_exit_aside.enqueue()]
    jobs += app_tasks.async_sleep.enqueue_many([(0.1,)] * 3)
    for job in jobs:
        harness.ended(job, 5)
    assert harness.statuses(jobs) == {"completed": 5}
    assert "stopped from inside a task" in worker.output


@pytest.mark.slow
def test_a_job_that_blocks_the_loop_is_killed_and_only_it_is_blamed(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1", "--async-concurrency", "10").wait_until_up(2)
    beside = tasks.async_run.enqueue(harness.book, "beside", 1.0)
    eventually(lambda: harness.runs()["beside"])
    bad = tasks.async_block.using(timeout=0.4).enqueue(harness.book, "bad", 60)
    harness.ended(bad, 9)
    assert (bad.status, bad.attempts, bad.recoveries) == ("failed", 1, 0)
    harness.ended(beside, 5)
    assert (beside.status, beside.attempts, beside.recoveries) == ("completed", 0, 0)


def test_sync_and_async_jobs_do_not_hold_each_other_up(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    slow = tasks.async_run.enqueue(harness.book, "slow", 1.5)
    eventually(lambda: harness.runs()["slow"])
    short = tasks.run.enqueue_many([(harness.book, f"short{n}") for n in range(100)])
    eventually(lambda: harness.statuses(short) == {"completed": 100}, 1.2, why=harness.report)
    gate = harness.gate()
    sync = tasks.run_until_gate_opens.enqueue(harness.book, "sync", gate)
    eventually(lambda: harness.runs()["sync"])
    harness.ended(slow)  # its outcome does not wait for the main thread
    sync.refresh()
    assert sync.status == "processing"
    harness.open_gate(gate)
    mixed = [
        (app_tasks.async_sleep if n % 2 else app_tasks.sleep).enqueue(0.005) for n in range(100)
    ]
    eventually(lambda: harness.statuses(mixed) == {"completed": 100}, 10, why=harness.report)


def test_a_child_killed_with_async_jobs_in_flight(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1", "--async-concurrency", "50").wait_until_up(2)
    done = tasks.async_run.enqueue_many([(harness.book, f"done{n}", 0.0) for n in range(20)])
    eventually(lambda: harness.statuses(done) == {"completed": 20}, why=harness.report)
    flying = tasks.async_run.enqueue_many([(harness.book, f"flying{n}", 0.5) for n in range(5)])
    eventually(lambda: len(harness.runs()) == 25, why=harness.report)
    os.kill(harness.pid("flying0"), signal.SIGKILL)
    harness.until_done(25)  # then the five again, one by one: any of them may have been to blame
    runs = harness.runs()
    assert {runs[f"done{n}"] for n in range(20)} == {1}
    assert {runs[f"flying{n}"] for n in range(5)} == {2}
    for job in flying:
        job.refresh()
        assert (job.recoveries, job.attempts) == (1, 0)


def test_database_connections_of_async_jobs_are_bounded(
    harness: WorkerHarness, database: object
) -> None:
    harness.worker(
        "--processes", "1", "--async-concurrency", "100", "--async-db-connections", "4"
    ).wait_until_up(2)
    jobs = tasks.async_orm.enqueue_many([(0.02,)] * 60)
    harness.until_done(60, 20)
    assert max(harness.results(jobs)) == 4  # threads


def test_database_connections_of_what_async_jobs_leave_running_are_bounded(
    harness: WorkerHarness, database: object
) -> None:
    harness.worker("--processes", "1", "--async-db-connections", "4").wait_until_up(2)
    tasks.async_orm_aside.enqueue_many([()] * 20)
    harness.until_done(20)
    last = harness.ended(tasks.async_orm_of_those_left.enqueue(), 20)
    assert last.result == 4, harness.report()  # threads
    assert harness.ended(tasks.async_transaction.enqueue("row")).result == 1  # there is one free


def test_async_jobs_never_share_a_transaction(harness: WorkerHarness, database: object) -> None:
    """Each keeps a transaction open across an await; there are more jobs than connections."""
    harness.worker(
        "--processes", "1", "--async-concurrency", "20", "--async-db-connections", "2"
    ).wait_until_up(2)
    jobs = [tasks.async_transaction.enqueue(f"row{n}") for n in range(8)]
    harness.until_done(8, 20)
    assert harness.results(jobs) == [1] * 8, harness.report()


def test_an_async_job_that_is_cut_off_in_a_transaction_spoils_no_connection(
    harness: WorkerHarness, database: object
) -> None:
    harness.worker("--processes", "1", "--async-db-connections", "1").wait_until_up(2)
    cut_off = harness.ended(tasks.async_transaction.using(timeout=0.2).enqueue("row", 30), 8)
    next_one = harness.ended(tasks.async_transaction.enqueue("row"), 8)
    assert (cut_off.status, next_one.status) == ("failed", "completed"), harness.report()
    assert next_one.result == 1  # what was not committed is gone


def test_an_async_job_keeps_its_connection_while_it_reads_rows(
    harness: WorkerHarness, postgres: PostgresServer
) -> None:
    """Rows come from a server-side cursor, which would be lost with the connection."""
    entry = postgres.new_database()
    harness.environment["REDISQUEUE_TEST_DATABASES"] = json.dumps({"default": entry})
    harness.worker("--processes", "1", "--async-db-connections", "1").wait_until_up(2)
    jobs = tasks.async_rows.enqueue_many([(10,)] * 3)
    harness.until_done(3, 20)
    assert harness.results(jobs) == [10] * 3, harness.report()
    postgres.drop(entry)


def test_a_cancelled_async_job_gives_its_connection_back(
    harness: WorkerHarness, database: object
) -> None:
    harness.worker(
        "--processes", "1", "--async-concurrency", "10", "--async-db-connections", "1"
    ).wait_until_up(2)
    first = harness.running(tasks.async_orm.using(timeout=1).enqueue(3.0))
    second = tasks.async_orm.enqueue(0.01)
    harness.ended(second, 8)
    harness.ended(first)
    assert (first.status, second.status) == ("failed", "completed")


def _suspect_behind_a_long_job(harness: WorkerHarness) -> tuple[Job, Job]:
    """A recovered job at the head of the queue, whose child is not free; the queue is paused."""
    long = tasks.async_run.enqueue(harness.book, "long", 60)
    eventually(lambda: harness.runs()["long"], why=harness.report)
    JobQueue("default").pause()
    suspect = tasks.run.enqueue(harness.book, "suspect")
    said = {"recoveries": 1, "lease": 1, "seq": 3}
    harness.redis.hset(keys_of().job(suspect.id), mapping=said)
    return suspect, long


def test_jobs_pass_a_suspect_that_waits_for_its_child_to_be_free(harness: WorkerHarness) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    suspect, long = _suspect_behind_a_long_job(harness)
    before = tasks.run.enqueue_many([(harness.book, f"before{n}") for n in range(20)])
    JobQueue("default").resume()
    eventually(lambda: harness.statuses(before) == {"completed": 20}, why=harness.report)
    after = [harness.ended(tasks.run.enqueue(harness.book, f"after{n}")) for n in range(3)]
    assert harness.statuses(after) == {"completed": 3}
    assert harness.statuses([long, suspect]) == {"processing": 1, "queued": 1}
    assert long.cancel()
    harness.ended(suspect)
    assert (suspect.status, harness.runs()["suspect"]) == ("completed", 1)


def test_a_child_whose_jobs_overlap_makes_room_for_a_suspect(harness: WorkerHarness) -> None:
    harness.alter("quick_suspects")
    harness.worker("--processes", "1", "--async-concurrency", "3").wait_until_up(2)
    suspect, long = _suspect_behind_a_long_job(harness)
    backlog = [tasks.async_run.enqueue(harness.book, f"n{n}", 0.3 + n % 7 / 20) for n in range(120)]
    JobQueue("default").resume()
    eventually(lambda: harness.runs()["n1"], why=harness.report)
    assert long.cancel()
    harness.ended(suspect)
    assert harness.statuses(backlog)["queued"] > 0


def test_the_last_progress_of_an_async_job_is_stored_when_it_has_ended(
    harness: WorkerHarness,
) -> None:
    harness.worker("--processes", "1").wait_until_up(2)
    jobs = tasks.async_progress.enqueue_many([(n,) for n in range(1, 51)])
    harness.until_done(50)
    for n, job in enumerate(jobs, 1):
        job.refresh()
        assert job.status == "completed"
        assert job.progress is not None
        assert job.progress.done == n
